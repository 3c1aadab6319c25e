"""`RematScope`: rematerialization of layers in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from keras_dist._support.ambient import remat_scopes
from keras_dist._support.arguments import check_option, check_optional, check_size, check_strings
from keras_dist._support.types import PyTree
from keras_dist._unstable.flax_internals import attribute_order, restore_order, without_eager_sharding
from keras_dist.layers.base.layer_record import is_layer
from keras_dist.variables import Frozen, call_context

MODES = ("full", "activations", "larger_than", "list_of_layers")

_NOT_STATE = (nnx.Param, Frozen, nnx.Intermediate)
"""Variables that a call does not change permanently."""


class RematScope:
    """Context manager: layers made inside recompute intermediate values of their `call` in the backward pass.

    The innermost scope applies to a layer for its lifetime. A layer called inside a rematerialized layer, `RNN` or
    `TimeDistributed` is recomputed with it. `remat=` of `compile` does the same without a change of the model.

    Args:
        mode: `"full"` for all layers; `"activations"` for the attribute `activation` of layers; `"larger_than"` for
            layers with large outputs; `"list_of_layers"` for layers by name; None for no layers.
        output_size_threshold: `"larger_than"` selects layers with more elements in all outputs, batch included.
        layer_names: names of layers for `"list_of_layers"`.

    Raises:
        ModelError: `mode` is unknown, or the threshold is not a positive integer.

    Example:
        >>> import keras_dist as kd
        >>> with kd.RematScope("list_of_layers", layer_names=["block"]):
        ...     model = kd.Sequential([kd.layers.Dense(64, "relu", name="block"), kd.layers.Dense(1)])

    Source: `keras.RematScope`.
    """

    def __init__(
        self, mode: str | None = "full", output_size_threshold: int = 1024, layer_names: Sequence[str] | None = None
    ) -> None:
        self.mode = check_option("mode", mode, (None, *MODES))
        self.output_size_threshold = check_size("output_size_threshold", output_size_threshold, "RematScope")
        self.layer_names = list(check_optional(check_strings, "layer_names", layer_names) or ())

    def __enter__(self) -> RematScope:
        remat_scopes.set((*remat_scopes.get(), self))
        return self

    def __exit__(self, *args: object) -> None:
        remat_scopes.set(remat_scopes.get()[:-1])

    def wrapped(self, layer: Any, layer_call: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Return `layer_call`, a method of `layer`, rematerialized if this scope selects the layer."""
        if self.mode == "activations":
            return _with_activation_again(layer, layer_call)
        if self.mode is None or (self.mode == "list_of_layers" and layer.name not in self.layer_names):
            return layer_call
        if getattr(layer_call, "__self__", None) is not layer:
            return jax.checkpoint(layer_call)
        least = self.output_size_threshold if self.mode == "larger_than" else None
        method: Any = layer_call

        def call(*args: Any, **kwargs: Any) -> PyTree:
            return checkpointed(method.__func__, layer, args, kwargs, least)

        return call


def current_scope() -> RematScope | None:
    """Return the innermost scope, if its mode is not None."""
    scope: RematScope | None = next(iter(remat_scopes.get()[-1:]), None)
    return None if scope is None or scope.mode is None else scope


def checkpointed(
    call_of: Callable[..., PyTree], layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], least: int | None = None
) -> PyTree:
    """Return `call_of(layer, ...)` under `jax.checkpoint`, if the outputs have more than `least` elements.

    Statistics, masks and losses of the layer are outputs of the checkpoint.
    """
    context = call_context.current() or call_context.CallContext()
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays = [leaf if isinstance(leaf, jax.Array) else None for leaf in leaves]
    graphdef, state = nnx.split(layer)
    values, state_structure = jax.tree.flatten(state)
    order, after = attribute_order(layer), []

    def call(values: PyTree, arrays: PyTree, masks: PyTree) -> PyTree:
        with without_eager_sharding():
            module = nnx.merge(graphdef, state_structure.unflatten(values), copy=True)
        restore_order(module, order)
        before = jax.tree.leaves(nnx.state(module, nnx.Not(_NOT_STATE)))
        filled = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
        given, options = structure.unflatten(filled)
        with call_context.entered(context.training, anew=True) as inner:
            inner.is_computed_again = True
            for array, mask in zip(arrays, masks, strict=True):
                inner.set_mask(array, mask)
            with call_context.calling(context.caller, context.weights_dtype):
                outputs = call_of(module, *given, **options)
            changed, structure_after = jax.tree.flatten(nnx.state(module, nnx.Not(_NOT_STATE)))
            is_same = list(map(id, before)) == list(map(id, changed))
            after.append(None if is_same else structure_after)
            return outputs, inner.mask_of(outputs), [] if is_same else changed, inner.losses

    inputs = (values, arrays, [context.mask_of(array) for array in arrays])
    if least is not None and _size(jax.eval_shape(call, *inputs)[0]) <= least:
        return call_of(layer, *args, **kwargs)
    outputs, output_masks, changed, losses = jax.checkpoint(call)(*inputs)
    if after[-1] is not None:  # a layer in a loop of the caller can only be changed inside of that loop
        nnx.update(layer, after[-1].unflatten(changed))
    context.set_mask(outputs, output_masks)
    if losses:
        context.losses.extend(losses)
        if is_layer(layer):
            layer._record.added += losses
    return outputs


def _with_activation_again(layer: Any, layer_call: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return `layer_call` with the attribute `activation` under `jax.checkpoint`."""
    activation = vars(layer).get("activation")
    if activation is None:
        return layer_call

    def call(*args: Any, **kwargs: Any) -> PyTree:
        vars(layer)["activation"] = jax.checkpoint(activation)
        try:
            return layer_call(*args, **kwargs)
        finally:
            vars(layer)["activation"] = activation

    return call


def _size(outputs: PyTree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(outputs))
