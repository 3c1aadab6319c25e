"""Layers that are called in a loop: `jax.lax.scan` and `jax.vmap` trace their body on its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.layers import call_context


def build_before(layer: Any, *inputs: Any) -> None:
    """Create the weights of a layer and of its sublayers, by a call that counts for nothing, before the loop begins."""
    with call_context.entered(False, anew=True):
        layer(*inputs)


def call_inside(layer: Any, training: bool | None, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
    """The output of a layer inside of a loop, and the losses that the call added, which the loop must return."""
    with call_context.entered(training, anew=True) as context:
        outputs = layer(*args, **kwargs)
    return outputs, context.losses


def add_losses(losses: list[jax.Array]) -> None:
    """Add the losses that a loop returned, of all its turns, to those of the call that is running."""
    context = call_context.current()
    if context is not None:
        context.losses.extend(jnp.sum(loss) for loss in losses)
