"""Penalties on how large values are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.regularizers.regularizer import Regularizer, check_factor


class L1L2(Regularizer):
    """`l1 * sum(abs(x)) + l2 * sum(x**2)`.

    Args:
        l1: 0 or more; None is 0.
        l2: 0 or more; None is 0.

    Raises:
        ModelError: a factor is not a number, infinite, or less than 0.

    Source: `keras.regularizers.L1L2`.
    """

    def __init__(self, l1: float | None = 0.0, l2: float | None = 0.0) -> None:
        self.l1 = check_factor("l1", 0.0 if l1 is None else l1)
        self.l2 = check_factor("l2", 0.0 if l2 is None else l2)

    def __call__(self, x: Any) -> jax.Array:
        """The penalty, a scalar of `x`'s dtype."""
        x = jnp.asarray(x)
        return _sum_of_magnitudes(self.l1, x) + _sum_of_squares(self.l2, x)


class L1(Regularizer):
    """`l1 * sum(abs(x))`.

    Args:
        l1: 0 or more; None is 0.01.

    Raises:
        ModelError: `l1` is not a number, infinite, or less than 0.

    Source: `keras.regularizers.L1`.
    """

    def __init__(self, l1: float | None = 0.01) -> None:
        self.l1 = check_factor("l1", 0.01 if l1 is None else l1)

    def __call__(self, x: Any) -> jax.Array:
        """The penalty, a scalar of `x`'s dtype."""
        return _sum_of_magnitudes(self.l1, jnp.asarray(x))


class L2(Regularizer):
    """`l2 * sum(x**2)`.

    Args:
        l2: 0 or more; None is 0.01.

    Raises:
        ModelError: `l2` is not a number, infinite, or less than 0.

    Source: `keras.regularizers.L2`.
    """

    def __init__(self, l2: float | None = 0.01) -> None:
        self.l2 = check_factor("l2", 0.01 if l2 is None else l2)

    def __call__(self, x: Any) -> jax.Array:
        """The penalty, a scalar of `x`'s dtype."""
        return _sum_of_squares(self.l2, jnp.asarray(x))


def _sum_of_magnitudes(factor: float, x: jax.Array) -> jax.Array:
    return jnp.asarray(factor, x.dtype) * jnp.sum(jnp.abs(x))


def _sum_of_squares(factor: float, x: jax.Array) -> jax.Array:
    return jnp.asarray(factor, x.dtype) * jnp.sum(jnp.square(x))
