"""`Masking`, and `Identity`."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_numbers
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import LayerArguments


class Masking(Layer):
    """Mask the steps of a sequence whose values all equal `mask_value`, and set them to 0.

    Args:
        mask_value: a number, or one for each feature.
        **kwargs: see `Layer`.
    """

    def __init__(self, mask_value: ArrayLike = 0.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.mask_value = check_numbers("mask_value", mask_value, self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs (batch, steps, ..., features), with zeros in masked steps."""
        return jnp.where(self.compute_mask(inputs)[..., None], inputs, 0)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return which steps (batch, steps, ...) are not masked."""
        return jnp.any(inputs != jnp.asarray(self.mask_value, inputs.dtype), axis=-1)


class Identity(Layer):
    """Return the inputs."""

    supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        return inputs
