"""Calls of layers in loop bodies, which `jax.lax.scan` and `jax.vmap` trace separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import PyTree
from keras_dist._unstable.flax_internals import TraceError
from keras_dist.errors import ModelError
from keras_dist.variables import call_context

if TYPE_CHECKING:
    from keras_dist.layers.layer import Layer


def build_before(layer: Layer, *inputs: PyTree) -> PyTree:
    """Create the weights of a layer and its sublayers before the loop, by a call that changes no state."""
    with call_context.entered(False, anew=True):
        return layer(*inputs)


def call_inside(layer: Layer, training: bool | None, *args: Any, **kwargs: Any) -> tuple[PyTree, list[jax.Array]]:
    """Call a layer inside a loop; return its output and added losses. It must not change variables."""
    with call_context.entered(training, anew=True) as context:
        context.is_computed_again = True  # only with the whole loop
        try:
            outputs = layer(*args, **kwargs)
        except (TraceError, ModelError) as error:
            if not isinstance(error.__cause__ or error, TraceError):
                raise
            summary = f"layer {layer.name!r} changes a variable inside of a loop over time"
            fix = "give the cell a method draw_noise(input_shape): what it returns comes to each step as `noise`"
            raise ModelError(summary, given=str(error).splitlines()[0], fix=fix) from error
    layer.forget_losses()  # tracers of one step; the loop returns them
    return outputs, context.losses


def add_losses(layer: Layer, losses: list[jax.Array]) -> None:
    """Add the losses returned by a loop in the call of a layer to the losses of the layer."""
    layer.add_loss([jnp.sum(loss) for loss in losses])
