"""`UnitNormalization`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_axes, check_axes_exist
from keras_dist.layers.layer import Layer

_LARGEST_FACTOR = 1e12
"""What zeros are multiplied by."""


class UnitNormalization(Layer):
    """Each example with an L2 norm of 1 over the dims `axis`.

    Args:
        axis: the dim, or dims, of the norm.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `axis` names no dims.

    Source: `keras.layers.UnitNormalization`.
    """

    def __init__(self, axis: Any = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = check_axes("axis", axis, self.name)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """The inputs over their norm."""
        axes = check_axes_exist("axis", self.axis, inputs.shape, self.name)
        squares = jnp.sum(jnp.square(inputs), axes, keepdims=True)
        return inputs * jnp.minimum(jax.lax.rsqrt(squares), _LARGEST_FACTOR)
