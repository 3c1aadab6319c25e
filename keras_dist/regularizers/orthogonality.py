"""A penalty on rows or columns that are not orthogonal to each other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError, UnknownNameError, did_you_mean, shorten
from keras_dist.regularizers.regularizer import Regularizer, check_factor

_MODES = ("rows", "columns")
_EPSILON = 1e-7  # rows shorter than this are not stretched to length 1


class OrthogonalRegularizer(Regularizer):
    """`factor` times the mean of `abs(u @ v)` over all pairs of normalized rows (or columns) of a matrix.

    Args:
        factor: 0 or more.
        mode: `"rows"` or `"columns"`.

    Raises:
        ModelError: `factor` is not a number, infinite, or less than 0.
        UnknownNameError: no mode has this name.

    Differs from Keras: one row alone has no penalty; Keras divides 0 by 0.

    Source: `keras.regularizers.OrthogonalRegularizer`.
    """

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        self.factor = check_factor("factor", factor)
        if mode not in _MODES:
            raise UnknownNameError(
                f"unknown `mode` {mode!r}{did_you_mean(str(mode), _MODES)}",
                given=f"mode={shorten(mode)}",
                expected=f"one of {', '.join(_MODES)}",
                fix="correct the name",
            )
        self.mode = mode

    def __call__(self, x: Any) -> jax.Array:
        """The penalty, a scalar of `x`'s dtype.

        Args:
            x: a matrix (rows, columns).

        Raises:
            ModelError: `x` is not a matrix.
        """
        x = jnp.asarray(x)
        if x.ndim != 2:
            raise ModelError(
                "OrthogonalRegularizer compares the rows or columns of a matrix",
                given=f"an array of shape {x.shape}",
                expected="shape (rows, columns)",
                fix="choose another regularizer for this weight, or reshape it in one of your own",
            )
        rows = x if self.mode == "rows" else x.T
        lengths = jax.lax.rsqrt(jnp.sum(jnp.square(rows), axis=1, keepdims=True))
        rows = rows * jnp.minimum(lengths, 1.0 / _EPSILON)
        size = rows.shape[0]
        products = jnp.abs(rows @ rows.T) * (1.0 - jnp.eye(size, dtype=x.dtype))
        return self.factor * jnp.sum(products) / max(size * (size - 1), 1)
