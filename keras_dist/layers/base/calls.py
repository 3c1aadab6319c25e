"""The call of a layer: methods of `Layer` for it, its masks, and the losses that it adds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.array_operators import native, value_of, values_in
from keras_dist._support.located_warnings import warn
from keras_dist._support.traced_values import explaining_traced_values
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.flax_internals import attribute_order, restore_order, trace_state_of
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.distribution.devices import check_not_forked
from keras_dist.errors import ModelError
from keras_dist.layers.base import symbolic
from keras_dist.layers.base.attributes import dtype_of_weights
from keras_dist.layers.base.building import build_once, shard_weights
from keras_dist.layers.base.call_arguments import (
    call_parameters,
    check_complete,
    check_inputs,
    check_numbers,
    takes_any,
    tensor_arguments,
    training_of,
    value_given,
)
from keras_dist.layers.base.layer_record import layers_inside
from keras_dist.layers.base.other_frameworks import check_is_ours, is_of_keras
from keras_dist.layers.base.weight_lists import not_built
from keras_dist.layers.base.weights import has_deferred, penalties, update_kinds
from keras_dist.variables import call_context


def call(self: Any, *args: Any, **kwargs: Any) -> PyTree:
    """Compute the output. Subclasses define it; `training` and `mask` are passed if it has such parameters."""
    raise NotImplementedError(f"{type(self).__name__} does not define call(self, inputs)")


def outputs_of(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Return the outputs of `layer(*args, **kwargs)`."""
    layer._check_initialised()
    args, kwargs = values_in((args, kwargs))
    check_numbers(call_parameters(type(layer)), args, kwargs, layer.name)
    if symbolic.is_any_symbolic((args, kwargs)):
        if layer._is_built and args:
            check_inputs(layer.input_spec, args[0], layer.name)
        return symbolic.connect(layer, args, kwargs)
    is_alone = call_context.current() is None
    is_new = is_alone and (not layer._is_built or has_deferred(layer))
    if is_alone:
        check_not_forked()
        forget_losses(layer)
    with call_context.entered(kwargs.get("training")) as context:
        outputs = _run(layer, args, kwargs, context)
    if is_new:
        shard_weights(layer)
        update_kinds(layer)
    return outputs


def _run(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: call_context.CallContext) -> PyTree:
    parameters = call_parameters(type(layer))
    check_complete(parameters, args, kwargs, layer.name)
    args, kwargs = jax.tree.map(functools.partial(_as_input, layer, context), (args, kwargs))
    tensors = tensor_arguments(parameters, args, kwargs)
    first = next(iter(tensors.values()), args[0] if args else None)
    check_inputs(layer.input_spec, first, layer.name)
    masks = {name: value for name, value in kwargs.items() if name.endswith("mask") and _any(value)}
    if context.root is None:
        context.root = trace_state_of(layer)
    build_once(layer, {**tensors, **masks}, context)
    if "training" in parameters and list(parameters).index("training") >= len(args):
        kwargs["training"] = value_given(parameters, args, kwargs, "training", training_of(parameters, context))
    elif not takes_any(parameters):
        kwargs.pop("training", None)
    masks = {name: context.mask_of(tensor) for name, tensor in tensors.items()}
    for name, mask in masks.items():
        wanted = "mask" if len(tensors) == 1 else f"{name}_mask"
        if wanted in parameters and value_given(parameters, args, kwargs, wanted, None) is None:
            kwargs[wanted] = mask if _any(mask) else None
    with call_context.calling(layer.name, dtype_of_weights(layer, context.weights_dtype)):
        is_again = layer._remat is not None and not context.is_computed_again
        call = layer.rematerialized_call(layer.call, *args, **kwargs) if is_again else layer.call
        with explaining_traced_values(f"`call` of layer {layer.name!r}"):
            outputs = call(*args, **kwargs)
    if layer.activity_regularizer is not None:
        for output in jax.tree.leaves(outputs):
            rows = max(output.shape[0], 1) if output.ndim else 1
            layer.add_loss(layer.activity_regularizer(output) / rows)
    previous = kwargs.get("mask", next(iter(masks.values()), None))
    if not layer.supports_masking and _any(previous):
        warn(
            f"layer {layer.name!r} ({type(layer).__name__}) gets a mask and does not support masking: the layers "
            "after it do not see the mask. Set supports_masking = True in its __init__, if the mask of the input "
            "is also one of the output, and define compute_mask, if it is another"
        )
    if layer.supports_masking and (_any(previous) or layer._makes_masks()):
        context.set_mask(outputs, layer.compute_mask(first, previous))
    return outputs


def rematerialized_call(
    self: Any, layer_call: Callable[..., PyTree], *args: Any, **kwargs: Any
) -> Callable[..., PyTree]:
    """Return `layer_call`, such as `call`, rematerialized if the `RematScope` of the layer selects it."""
    # not while weights are created: the checkpoint would lose them
    if self._remat is None or not all(layer.built for layer in layers_inside(self)):
        return layer_call
    return self._remat.wrapped(self, layer_call)


def compute_mask(self: Any, inputs: PyTree, previous_mask: PyTree = None) -> PyTree:
    """Return the mask of the output; by default the mask of the inputs."""
    return previous_mask


def add_loss(self: Any, loss: ArrayLike | Sequence[ArrayLike]) -> None:
    """Add a scalar, or several, to the loss of the current call.

    Raises:
        ModelError: no call is running.
    """
    context = call_context.current()
    if context is None:
        given = "add_loss(...) while nothing is called"
        fix = "for a function of a weight use its regularizer: add_weight(..., regularizer=...)"
        raise ModelError(f"add_loss of layer {self.name!r} must be called inside of call()", given=given, fix=fix)
    terms = jax.tree.leaves(loss)
    context.losses.extend(terms)
    self._record.added += terms


@hides_mesh
def losses(self: Any) -> list[jax.Array]:
    """The losses added in the last call by the layer and its sublayers, and regularization losses."""
    return [*(term for owner in layers_inside(self) for term in owner._record.added), *penalties(self)]


def forget_losses(layer: Any) -> None:
    """Remove the losses added in earlier calls."""
    for inner in layers_inside(layer):
        inner._record.added = []


def stateless_call(
    self: Any,
    trainable_variables: Sequence[ArrayLike],
    non_trainable_variables: Sequence[ArrayLike],
    *args: Any,
    return_losses: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Call the layer with the given values of its variables, without changing them.

    Args:
        trainable_variables: values for `trainable_variables`.
        non_trainable_variables: values for `non_trainable_variables`.
        *args: arguments of the call.
        return_losses: whether to return added losses.
        **kwargs: further arguments of the call, such as `training`.

    Returns:
        `(outputs, non_trainable_variables)` with updated values; with `return_losses` also the losses.

    Raises:
        ModelError: the layer is not built, or the number of values differs.

    Source: `keras.layers.Layer.stateless_call`.
    """
    if not self.built:
        raise not_built(self, "stateless_call")
    listed = [*self.trainable_variables, *self.non_trainable_variables]
    counts = (len(trainable_variables), len(non_trainable_variables))
    expected = (len(self.trainable_variables), len(self.non_trainable_variables))
    if counts != expected:
        given = f"{counts[0]} trainable and {counts[1]} other values, instead of {expected[0]} and {expected[1]}"
        fix = "pass a value for each of trainable_variables and non_trainable_variables"
        raise ModelError(f"stateless_call of layer {self.name!r}: the values do not fit", given=given, fix=fix)
    order = {id(variable): index for index, variable in enumerate(self.variables)}
    copy = nnx.merge(*nnx.split(self), copy=True)
    restore_order(copy, attribute_order(self))
    variables = copy.variables
    places = [variables[order[id(variable)]] for variable in listed]
    for place, value in zip(places, [*trainable_variables, *non_trainable_variables], strict=True):
        place[...] = jnp.asarray(value_of(value), place.dtype)
    with call_context.entered(anew=True):
        outputs = copy(*args, **kwargs)
        losses = copy.losses
    rest = [place[...] for place in places[expected[0] :]]
    return (outputs, rest, losses) if return_losses else (outputs, rest)


def _as_input(layer: Any, context: call_context.CallContext, value: PyTree) -> PyTree:
    """Cast a floating array to the input type of the layer; return other values as they are."""
    if isinstance(value, np.ndarray | np.generic):
        value = jnp.asarray(native(value))
    value = value_of(value)
    if is_of_keras(value):
        check_is_ours(f"layer {layer.name!r}: its input", value)
    if not isinstance(value, jax.Array) or not layer._casts_inputs:
        return value
    if not jnp.issubdtype(value.dtype, jnp.floating) or value.dtype == jnp.dtype(layer.input_dtype):
        return value
    cast = value.astype(layer.input_dtype)
    context.set_mask(cast, context.mask_of(value))
    return cast


def _any(masks: PyTree) -> bool:
    return any(mask is not None for mask in jax.tree.leaves(masks))
