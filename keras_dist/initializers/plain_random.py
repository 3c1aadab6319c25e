"""Random values whose spread is given, whatever the shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.initializers.initializer import RandomInitializer


class RandomNormal(RandomInitializer):
    """Normally distributed values.

    Args:
        mean: of the values.
        stddev: their standard deviation.
        seed: None, or an integer that goes before every key.

    Source: `keras.initializers.RandomNormal`.
    """

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        super().__init__(seed)
        self.mean = mean
        self.stddev = stddev

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """Values of `shape` that follow from the seed or `key`."""
        dtype = dtype or "float32"
        values = jax.nn.initializers.normal(self.stddev)(self.choose_key(key), shape, dtype)
        return values + jnp.asarray(self.mean, dtype)


class TruncatedNormal(RandomInitializer):
    """Normally distributed values, drawn again where they are more than two standard deviations from the mean.

    Args:
        mean: of the values.
        stddev: the standard deviation before values are drawn again; after it, it is 0.88 of that.
        seed: None, or an integer that goes before every key.

    Source: `keras.initializers.TruncatedNormal`.
    """

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        super().__init__(seed)
        self.mean = mean
        self.stddev = stddev

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """Values of `shape` that follow from the seed or `key`."""
        dtype = dtype or "float32"
        values = jax.nn.initializers.truncated_normal(self.stddev)(self.choose_key(key), shape, dtype)
        return values + jnp.asarray(self.mean, dtype)


class RandomUniform(RandomInitializer):
    """Values that are equally likely in [minval, maxval).

    Args:
        minval: the least value.
        maxval: above all values.
        seed: None, or an integer that goes before every key.

    Source: `keras.initializers.RandomUniform`.
    """

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None) -> None:
        super().__init__(seed)
        self.minval = minval
        self.maxval = maxval

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """Values of `shape` that follow from the seed or `key`."""
        return jax.random.uniform(self.choose_key(key), shape, dtype or "float32", self.minval, self.maxval)
