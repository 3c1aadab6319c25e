"""Initializers with constant values."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError
from keras_dist.initializers.initializer import Initializer


class Constant(Initializer):
    """Fills a weight with one number, or with the values of an array.

    Args:
        value: a number, or an array or list of numbers that broadcasts to the shape of the weight.

    Raises:
        ModelError: `value` is not numeric.
    """

    def __init__(self, value: Any = 0.0) -> None:
        try:
            has_numbers = np.asarray(value).dtype.kind in "biufcV"  # V: bfloat16 and similar types
        except ValueError:  # lists of different lengths
            has_numbers = False
        if not has_numbers:
            raise argument_error("value", value, "a number, or an array of numbers", example=0.1)
        self.value: Any = value

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return `value`, broadcast to `shape`; raise a ModelError if it does not broadcast."""
        value = jnp.asarray(self.value, dtype or "float32")
        try:
            return jnp.broadcast_to(value, tuple(shape))
        except ValueError:
            summary = "Constant: `value` does not broadcast to the shape of the weight"
            given = f"value of shape {value.shape} for shape {tuple(shape)}"
            raise ModelError(summary, given=given, fix="for example one value for each entry of the last dim") from None


class Zeros(Initializer):
    """Fills a weight with 0."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return zeros of `shape`."""
        return jnp.zeros(shape, dtype or "float32")


class Ones(Initializer):
    """Fills a weight with 1."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return ones of `shape`."""
        return jnp.ones(shape, dtype or "float32")


class Identity(Initializer):
    """`gain` times the identity matrix."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return a matrix of `shape` (rows, columns)."""
        if len(shape) != 2:
            given = f"shape {tuple(shape)} of {len(shape)} dims"
            fix = "choose another initializer for this weight"
            raise ModelError("Identity initializes only matrices", given=given, fix=fix)
        dtype = dtype or "float32"
        return jnp.asarray(self.gain, dtype) * jnp.eye(*shape, dtype=dtype)
