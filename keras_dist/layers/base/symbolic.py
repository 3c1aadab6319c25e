"""Layers called on symbolic tensors, `layers.Dense(10)(Input((8,)))`: methods of `Layer` for symbols and shapes."""

from __future__ import annotations

from typing import Any

import jax

from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.errors import NotAvailableError
from keras_dist.layers.base.call_arguments import call_parameters, called_with_shapes, tensor_arguments
from keras_dist.layers.base.shape_calls import building_for_shapes, copy_for_shapes
from keras_dist.symbolic import tensors
from keras_dist.symbolic.shape_tracing import sizes_of_unknown
from keras_dist.symbolic.tensors import KerasTensor, Node
from keras_dist.symbolic.tensors import is_any_symbolic as is_any_symbolic
from keras_dist.symbolic.tensors import is_text as is_text
from keras_dist.variables import call_context


def connect(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a layer for symbolic inputs, and add the call to the graph."""
    node = tensors.connect(layer, args, kwargs)
    layer._record.nodes.append(node)
    if not (layer._is_built or layer._creates_weights() or tensors.runs_on_host(layer) or layer._needs_no_building()):
        with building_for_shapes(layer):  # its own method has returned the shapes
            called_with_shapes(layer.build, tensor_arguments(call_parameters(type(layer)), args, kwargs, KerasTensor))
    return node.outputs


def traced_outputs(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a call, with their masks, by tracing a call for shapes."""
    leaves, _ = jax.tree.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, KerasTensor)]
    shapes = [leaves[place].shape for place in places]

    def arrays_of(tree: PyTree) -> list[Any]:
        found = jax.tree.leaves(tree)
        return [found[place] for place in places]

    def run(args: Any, kwargs: Any, masks: list[tuple[jax.Array, jax.Array]]) -> tuple[PyTree, list[Any]]:
        called = copy_for_shapes(layer)
        with call_context.entered(anew=True) as context:
            context.sizes_of_unknown = sizes_of_unknown(shapes, arrays_of((args, kwargs)))
            for array, mask in masks:
                context.set_mask(array, mask)
            outputs = called(*args, **kwargs)
            return outputs, [context.mask_of(leaf) for leaf in jax.tree.leaves(outputs)]

    return tensors.traced_outputs(layer, run, args, kwargs)


def input(self: Any) -> PyTree:
    """The symbolic input of the first call."""
    return _first_node(self).inputs


def output(self: Any) -> PyTree:
    """The symbolic output of the first call."""
    return _first_node(self).outputs


def _first_node(layer: Any) -> Node:
    """Return the first call of a layer on symbolic tensors."""
    nodes, membership = layer._record.nodes, layer._record.membership
    if not nodes and membership is not None:
        membership.note_symbols()
    if not nodes:
        given = "a layer that was not called on symbolic tensors"
        fix = "x = Input(shape); y = layer(x)"
        raise NotAvailableError(f"layer {layer.name!r} has no symbolic input and output", given=given, fix=fix)
    return nodes[0]


def compute_output_spec(self: Any, *args: Any, **kwargs: Any) -> PyTree:
    """Return the symbolic outputs of a call, without adding it to a graph. Traces `call`.

    If a subclass defines this method or `compute_output_shape`, `call` is traced only for inputs with masks, and
    when a model creates the weights. Shapes alone give tensors of `compute_dtype`.
    """
    defines_shape = not hasattr(self.compute_output_shape, "is_default")
    leaves = jax.tree.leaves((args, kwargs))
    # masks follow from tracing alone
    if not defines_shape or self._makes_masks() or any(getattr(leaf, "mask", None) is not None for leaf in leaves):
        try:
            return traced_outputs(self, args, kwargs)
        except jax.errors.JAXTypeError:
            if not defines_shape:
                raise
    given = tensor_arguments(call_parameters(type(self)), args, kwargs, KerasTensor)
    return tensors_of(called_with_shapes(self.compute_output_shape, given), self.compute_dtype)


def compute_output_shape(self: Any, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Return the shape of the output, including the batch; None stands for any size. Traces `call`.

    A subclass may define it, so that `call` is not traced on symbolic inputs.

    Args:
        *args: shapes of the inputs: tuples, or structures of them.
        **kwargs: shapes of inputs by name: `value_shape` for the argument `value`.
    """
    named = {name.removesuffix("_shape"): shape for name, shape in kwargs.items()}
    if not args and kwargs.keys() == {"input_shape"}:
        args, named = (named["input"],), {}
    first = tuple(tensors_of(shape, self.compute_dtype) for shape in args)
    others = {name: tensors_of(shape, self.compute_dtype) for name, shape in named.items()}
    # not by `compute_output_spec` of the base, which asks a `compute_output_shape` that may have come here by `super()`
    is_traced = hasattr(self.compute_output_spec, "is_default")
    outputs = (traced_outputs if is_traced else tensors.infer)(self, first, others)
    return jax.tree.map(lambda tensor: tensor.shape, outputs)


compute_output_shape.is_default = compute_output_spec.is_default = True  # type: ignore[attr-defined]


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
