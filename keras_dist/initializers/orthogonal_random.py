"""Random orthogonal matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError
from keras_dist.initializers.initializer import RandomInitializer


class Orthogonal(RandomInitializer):
    """A random matrix whose columns are orthonormal, or its rows where it has more columns than rows.

    A weight of more dims is such a matrix with all dims but the last as one.

    Args:
        gain: what the matrix is multiplied by.
        seed: None, or an integer that goes before every key.

    Source: `keras.initializers.Orthogonal`; https://openreview.net/forum?id=_wzZwKpTDF_9C.
    """

    def __init__(self, gain: float = 1.0, seed: int | None = None) -> None:
        super().__init__(seed)
        self.gain = gain

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """Values of `shape` that follow from the seed or `key`. They are computed in float32 or more.

        Raises:
            ModelError: `shape` has less than two dims.
        """
        if len(shape) < 2:
            raise ModelError(
                "Orthogonal gives weights of two dims and more",
                given=f"shape {tuple(shape)} of {len(shape)} dims",
                expected="a shape (..., rows, columns)",
                fix="choose another initializer for this weight",
            )
        dtype = jnp.dtype(dtype or "float32")
        draw = jax.nn.initializers.orthogonal(self.gain)
        return draw(self.choose_key(key), shape, jnp.promote_types(dtype, "float32")).astype(dtype)
