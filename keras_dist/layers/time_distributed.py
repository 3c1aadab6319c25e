"""`TimeDistributed`."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist.errors import ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.loop_body import add_losses, build_before, call_inside
from keras_dist.layers.weights import walk
from keras_dist.layers.wrapper import Wrapper


class TimeDistributed(Wrapper):
    """A layer, called on each position of a sequence with the same weights.

    All positions are computed at once. A layer that draws random numbers or keeps statistics is called on one after the
    other, as in Keras. Weights are found under the name of the layer: `dense/kernel`.

    Args:
        layer: any layer.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `layer` is none.

    Differs from Keras: what the layer adds to the loss, as its `activity_regularizer` does, counts for each position.

    Source: `keras.layers.TimeDistributed`.
    """

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.input_spec = InputSpec(min_ndim=3)
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create the weights of the layer, for inputs without the dim of time."""
        build_before(self.layer, jnp.zeros((input_shape[0] or 1, *input_shape[2:]), self.compute_dtype))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The outputs (batch, time, ...).

        Args:
            inputs: (batch, time, ...).
            training: as of the layer.
            mask: which positions count (batch, time), or more dims; passed on to a layer that takes masks.

        Raises:
            ModelError: the mask does not fit.
        """
        if mask is not None and mask.shape[:2] != inputs.shape[:2]:
            raise ModelError(
                f"the mask of layer {self.name!r} does not fit its input",
                given=f"a mask of shape {mask.shape} for an input of shape {inputs.shape}",
                expected=f"a mask that begins with {inputs.shape[:2]}",
                fix="reshape the mask, or leave it out",
            )
        mask = mask if "mask" in inspect.signature(self.layer.call).parameters else None

        def step(inputs: Any, mask: Any) -> Any:
            return call_inside(self.layer, training, inputs, **({} if mask is None else {"mask": mask}))

        if all(isinstance(variable, nnx.Param) for _, variable in walk(self.layer)):
            axes = (1, None if mask is None else 1)
            outputs, losses = jax.vmap(step, in_axes=axes, out_axes=(1, 0))(inputs, mask)
        else:
            times = range(inputs.shape[1])
            steps = [step(inputs[:, time], None if mask is None else mask[:, time]) for time in times]
            outputs = jax.tree.map(lambda *arrays: jnp.stack(arrays, 1), *[outputs for outputs, _ in steps])
            losses = [loss for _, losses in steps for loss in losses]
        add_losses(losses)
        return outputs
