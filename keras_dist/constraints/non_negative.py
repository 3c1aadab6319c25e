"""Weights without negative values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.constraints.constraint import Constraint


class NonNeg(Constraint):
    """Values below 0 become 0.

    Source: `keras.constraints.NonNeg`.
    """

    def __call__(self, w: Any) -> jax.Array:
        """`max(w, 0)`."""
        return jnp.maximum(jnp.asarray(w), 0)
