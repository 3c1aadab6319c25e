"""Weights of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.constraints.constraint import Constraint
from keras_dist.errors import ModelError

_EPSILON = 1e-7  # keeps weights of length 0 as they are


class MaxNorm(Constraint):
    """Scaled down where longer than `max_value`.

    Args:
        max_value: the greatest length.
        axis: the dims over which a length is taken: 0 for a kernel (inputs, outputs), so that each output's weights
            have one; [0, 1, 2] for that of a 2D convolution.

    Raises:
        ModelError: `max_value` is less than 0.

    Source: `keras.constraints.MaxNorm`.
    """

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        _check_bounds(0, max_value)
        self.max_value = max_value
        self.axis = axis

    def __call__(self, w: Any) -> jax.Array:
        """`w`, shortened."""
        w, norms = _with_norms(w, self.axis)
        return w * (jnp.minimum(norms, self.max_value) / (norms + _EPSILON))


class UnitNorm(Constraint):
    """Scaled to length 1.

    Args:
        axis: as in `MaxNorm`.

    Source: `keras.constraints.UnitNorm`.
    """

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        self.axis = axis

    def __call__(self, w: Any) -> jax.Array:
        """`w`, of length 1."""
        w, norms = _with_norms(w, self.axis)
        return w / (norms + _EPSILON)


class MinMaxNorm(Constraint):
    """Scaled towards a length between `min_value` and `max_value`.

    Args:
        min_value: the least length.
        max_value: the greatest length.
        rate: how much of the way each step goes: 1 for all of it.
        axis: as in `MaxNorm`.

    Raises:
        ModelError: not `0 <= min_value <= max_value`.

    Source: `keras.constraints.MinMaxNorm`.
    """

    def __init__(
        self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: int | Sequence[int] = 0
    ) -> None:
        _check_bounds(min_value, max_value)
        self.min_value = min_value
        self.max_value = max_value
        self.rate = rate
        self.axis = axis

    def __call__(self, w: Any) -> jax.Array:
        """`w`, with its lengths moved by `rate` of the way."""
        w, norms = _with_norms(w, self.axis)
        desired = self.rate * jnp.clip(norms, self.min_value, self.max_value) + (1 - self.rate) * norms
        return w * (desired / (norms + _EPSILON))


def _with_norms(w: Any, axis: int | Sequence[int]) -> tuple[jax.Array, jax.Array]:
    w = jnp.asarray(w)
    axes = axis if isinstance(axis, int) else tuple(axis)
    return w, jnp.sqrt(jnp.sum(jnp.square(w), axis=axes, keepdims=True))


def _check_bounds(min_value: float, max_value: float) -> None:
    if not 0 <= min_value <= max_value:
        raise ModelError(
            "no weight can have such a length",
            given=f"min_value={min_value}, max_value={max_value}",
            expected="0 <= min_value <= max_value",
            fix="exchange them, or correct the sign",
        )
