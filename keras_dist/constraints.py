"""Constraints: projections of weights, applied after each step of training.

Source: names, arguments and defaults as in `keras.constraints`.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_number
from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError
from keras_dist.serialization.configurable import Configurable
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry, callable_with_one_array


class Constraint(Configurable):
    """Base of all constraints; a subclass defines `__call__(w)`, which returns the constrained weight.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import constraints
        >>> class AtMostOne(constraints.Constraint):
        ...     def __call__(self, w):
        ...         return jnp.minimum(w, 1.0)
        >>> AtMostOne()(jnp.array([0.5, 2.0]))
        Array([0.5, 1. ], dtype=float32)
    """

    def __call__(self, w: ArrayLike) -> Any:
        """Return the constrained weight, by default `w`."""
        return w


class NonNeg(Constraint):
    """Sets negative values to 0."""

    def __call__(self, w: ArrayLike) -> jax.Array:
        """Return the constrained weight."""
        return jnp.maximum(jnp.asarray(w), 0)


class MaxNorm(Constraint):
    """Scales weights to norms of at most `max_value`.

    Args:
        max_value: upper limit of norms.
        axis: the dims over which norms are taken: 0 for a kernel (inputs, outputs), so that each output has a norm;
            [0, 1, 2] for the kernel of a 2D convolution.

    Raises:
        ModelError: `max_value` is less than 0.
    """

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        _check_bounds(0, max_value)
        self.max_value = max_value
        self.axis = axis

    def __call__(self, w: ArrayLike) -> jax.Array:
        """Return the constrained weight."""
        w, norms = _with_norms(w, self.axis)
        return w * (jnp.minimum(norms, self.max_value) / (norms + epsilon()))


class UnitNorm(Constraint):
    """Scales weights to norms of 1.

    Args:
        axis: as in `MaxNorm`.
    """

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        self.axis = axis

    def __call__(self, w: ArrayLike) -> jax.Array:
        """Return the constrained weight."""
        w, norms = _with_norms(w, self.axis)
        return w / (norms + epsilon())


class MinMaxNorm(Constraint):
    """Scales weights towards norms between `min_value` and `max_value`.

    Args:
        min_value: lower limit of norms.
        max_value: upper limit of norms.
        rate: fraction of the correction that each step applies.
        axis: as in `MaxNorm`.

    Raises:
        ModelError: the limits are not `0 <= min_value <= max_value`.
    """

    def __init__(
        self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: int | Sequence[int] = 0
    ) -> None:
        _check_bounds(min_value, max_value)
        self.min_value = min_value
        self.max_value = max_value
        self.rate = rate
        self.axis = axis

    def __call__(self, w: ArrayLike) -> jax.Array:
        """Return the constrained weight."""
        w, norms = _with_norms(w, self.axis)
        desired = self.rate * jnp.clip(norms, self.min_value, self.max_value) + (1 - self.rate) * norms
        return w * (desired / (norms + epsilon()))


def _with_norms(w: ArrayLike, axis: int | Sequence[int]) -> tuple[jax.Array, jax.Array]:
    w = jnp.asarray(w)
    axes = axis if isinstance(axis, int) else tuple(axis)
    return w, jnp.sqrt(jnp.sum(jnp.square(w), axis=axes, keepdims=True))


def _check_bounds(min_value: float, max_value: float) -> None:
    for name, value in (("min_value", min_value), ("max_value", max_value)):
        if not (isinstance(value, float) and value == math.inf):
            check_number(name, value)
    if not 0 <= min_value <= max_value:
        given = f"min_value={min_value}, max_value={max_value}"
        fix = "exchange them, or correct the sign"
        raise ModelError("`min_value` and `max_value` must be 0 <= min_value <= max_value", given=given, fix=fix)


# further names of Keras
max_norm = MaxNorm
min_max_norm = MinMaxNorm
non_neg = NonNeg
unit_norm = UnitNorm

_CONSTRAINTS = ObjectRegistry(
    "constraint",
    __name__,
    Constraint,
    accepted="a Constraint or a function of one array",
    example='"non_neg" or constraints.MaxNorm(3)',
    convert=callable_with_one_array,
)


def get(identifier: Any) -> Callable[[Any], Any] | None:
    """Return the constraint of a name, config, class or function of one array; None for None.

    Raises:
        UnknownNameError: no constraint has this name.
        ModelError: `identifier` cannot be called with one array.
        ConfigError: a config is invalid.

    Example:
        >>> from keras_dist import constraints
        >>> constraints.get("max_norm").get_config()
        {'max_value': 2, 'axis': 0}
    """
    return _CONSTRAINTS.get(identifier)


def serialize(constraint: Any) -> Any:
    """Return the config of a constraint."""
    return serialize_keras_object(constraint)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the constraint of a config or name; `custom_objects` maps further names to objects."""
    return _CONSTRAINTS.deserialize(config, custom_objects)


__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "") == __name__ and name[0] != "_"]  # pyright: ignore[reportUnsupportedDunderAll]
