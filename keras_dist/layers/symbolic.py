"""Calls of layers on symbolic tensors: `outputs = layers.Dense(10)(Input((8,)))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import PyTree
from keras_dist.errors import NotAvailableError
from keras_dist.layers.shape_tracing import fresh_copy
from keras_dist.symbolic import shape_tracing, tensors
from keras_dist.symbolic.tensors import KerasTensor, Node, mask_of
from keras_dist.symbolic.tensors import infer as infer
from keras_dist.symbolic.tensors import is_any_symbolic as is_any_symbolic
from keras_dist.symbolic.tensors import is_text as is_text
from keras_dist.variables import call_context

if TYPE_CHECKING:
    from keras_dist.layers.layer import Layer


def connect(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the symbolic outputs of a layer for symbolic inputs, and add the call to the graph.

    Raises:
        ModelError: the layer does not take such inputs.
    """
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
            build_as_called(called)  # what it was built for first, it asks of all inputs
            outputs = called(*args, **kwargs)
            return outputs, [context.mask_of(leaf) for leaf in jax.tree.leaves(outputs)]

    return tensors.traced_outputs(layer, run, args, kwargs)


def build_as_called(layer: Layer) -> bool:
    """Build a layer as its first call on symbolic tensors would have: somebody asks for its weights.

    Returns:
        Whether there was such a call, and the layer has not been built by it yet.
    """
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
