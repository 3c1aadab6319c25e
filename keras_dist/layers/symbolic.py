"""Layers called on symbolic tensors, `layers.Dense(10)(Input((8,)))`, and the shapes of their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist._unstable.flax_internals import attribute_order, restore_order, without_eager_sharding
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.distribution.variables import leaf_parts
from keras_dist.errors import NotAvailableError
from keras_dist.layers.call_arguments import call_parameters, called_with_shapes, tensor_arguments
from keras_dist.layers.runtime import HasRuntime
from keras_dist.symbolic import shape_tracing, tensors
from keras_dist.symbolic.tensors import KerasTensor, Node, mask_of
from keras_dist.symbolic.tensors import is_any_symbolic as is_any_symbolic
from keras_dist.symbolic.tensors import is_text as is_text
from keras_dist.variables import call_context

if TYPE_CHECKING:
    from keras_dist.layers.layer import Layer


def connect(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a layer for symbolic inputs, and add the call to the graph."""
    node = tensors.connect(layer, args, kwargs)
    layer._runtime.nodes.append(node)
    return node.outputs


def traced_outputs(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a call, with their masks, by tracing a copy of the layer."""

    def run(args: Any, kwargs: Any, masks: list[tuple[jax.Array, jax.Array]]) -> tuple[PyTree, list[Any]]:
        called: Any = fresh_copy(layer)[0]
        with call_context.entered(anew=True) as context:
            context.is_of_shapes = True
            for array, mask in masks:
                context.set_mask(array, mask)
            build_as_called(called)  # all calls must fit the inputs that it was first built for
            outputs = called(*args, **kwargs)
            return outputs, [context.mask_of(leaf) for leaf in jax.tree.leaves(outputs)]

    return tensors.traced_outputs(layer, run, args, kwargs)


def build_as_called(layer: Layer) -> bool:
    """Build a layer for its first call on symbolic tensors, if there is one; return whether it was built."""
    runtime = layer._runtime
    node = runtime.first_call or next(iter(runtime.nodes), None)
    if node is None or not node.parents or runtime.made is not None or layer._has_weights:
        return False
    runtime.first_call = None

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, KerasTensor):
            return leaf
        return jnp.zeros([shape_tracing.SIZES[0] if size is None else size for size in leaf.shape], leaf.dtype)

    tensors, treedef = jax.tree.flatten((node.args, node.kwargs))
    values = [zeros(tensor) for tensor in tensors]
    args, kwargs = treedef.unflatten(values)
    with call_context.entered(False, anew=True) as context:
        for tensor, value in zip(tensors, values, strict=True):
            context.set_mask(value, zeros(mask_of(tensor)))
        layer(*args, **kwargs)
    return True


def first_node(layer: Layer) -> Node:
    """Return the first call of a layer on symbolic tensors."""
    nodes = layer._runtime.nodes
    if not nodes:
        given = "a layer that was not called on symbolic tensors"
        fix = "x = Input(shape); y = layer(x)"
        raise NotAvailableError(f"layer {layer.name!r} has no symbolic input and output", given=given, fix=fix)
    return nodes[0]


def output_spec(
    layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], defines_shape: bool, makes_masks: bool
) -> PyTree:
    """Return the symbolic outputs of a call: by tracing it, or by the layer's own `compute_output_shape`."""
    leaves = jax.tree.leaves((args, kwargs))
    # masks follow from tracing alone
    if not defines_shape or makes_masks or any(getattr(leaf, "mask", None) is not None for leaf in leaves):
        try:
            return traced_outputs(layer, args, kwargs)
        except jax.errors.JAXTypeError:
            if not defines_shape:
                raise
    given = tensor_arguments(call_parameters(type(layer)), args, kwargs, KerasTensor)
    return tensors_of(called_with_shapes(layer.compute_output_shape, given), layer.compute_dtype)


def output_shape(layer: Layer, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
    """Return the output shapes of a layer for input shapes, given as arguments such as `value_shape`."""
    named = {name.removesuffix("_shape"): shape for name, shape in kwargs.items()}
    if not args and kwargs.keys() == {"input_shape"}:
        args, named = (named["input"],), {}
    first = tuple(tensors_of(shape, layer.compute_dtype) for shape in args)
    others = {name: tensors_of(shape, layer.compute_dtype) for name, shape in named.items()}
    # not by `compute_output_spec` of the base, which asks a `compute_output_shape` that may have come here by `super()`
    is_traced = hasattr(layer.compute_output_spec, "is_default")
    outputs = (traced_outputs if is_traced else tensors.infer)(layer, first, others)
    return jax.tree.map(lambda tensor: tensor.shape, outputs)


def tensors_of(shapes: PyTree, dtype: DTypeLike) -> PyTree:
    """Return symbolic tensors of these shapes: tuples or lists of sizes and None."""
    return jax.tree.map(
        lambda shape: None if shape is None else KerasTensor(shape, dtype),
        shapes,
        is_leaf=lambda value: value is None or is_shape(value),
    )


def is_shape(value: Any) -> bool:
    """Return whether a value is one shape: a tuple, or a non-empty list, of sizes and None."""
    if isinstance(value, list) and not value:
        return False
    return isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)


def fresh_copy(module: nnx.Module) -> tuple[nnx.Module, set[tree_paths.Parts]]:
    """Return a copy of a module, to be changed in the current trace, and the paths of the arrays that exist already.

    These arrays are zeros in the copy. Attributes keep their order, and layers remember their first symbolic call.
    """
    graphdef, state = nnx.split(module)
    known = set(leaf_parts(state))
    with without_eager_sharding():
        copy = nnx.merge(graphdef, jax.tree.map(_placeholder, state), copy=True)
    restore_order(copy, attribute_order(module))
    called = {
        path: node._runtime
        for path, node in nnx.iter_graph(module)
        if isinstance(node, HasRuntime) and node._runtime.nodes
    }
    copies = dict(nnx.iter_graph(copy)) if called else {}
    for path in called.keys() & copies.keys():
        copies[path]._runtime.first_call = called[path].nodes[0]
    return copy, known


def _placeholder(array: Any) -> Any:
    return array if is_key_dtype(array.dtype) else jnp.zeros(array.shape, array.dtype)
