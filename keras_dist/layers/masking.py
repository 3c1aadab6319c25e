"""`Masking`, and `Identity`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from keras_dist._arguments import check_numbers
from keras_dist.layers.layer import Layer


class Masking(Layer):
    """Masks the steps of a sequence all of whose values are `mask_value`, and makes them 0.

    Args:
        mask_value: a number, or one for each feature.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `mask_value` is no number.

    Source: `keras.layers.Masking`.
    """

    def __init__(self, mask_value: Any = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask_value = check_numbers("mask_value", mask_value, self.name)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """The inputs (batch, steps, ..., features), those of masked steps 0."""
        return jnp.where(self.compute_mask(inputs)[..., None], inputs, 0)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Which steps (batch, steps, ...) stay."""
        return jnp.any(inputs != jnp.asarray(self.mask_value, inputs.dtype), axis=-1)


class Identity(Layer):
    """The inputs, as they are.

    Args:
        **kwargs: as of `Layer`.

    Source: `keras.layers.Identity`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """The inputs."""
        return inputs
