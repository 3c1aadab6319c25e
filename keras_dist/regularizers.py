"""Regularizers: penalties on weights and outputs, which are added to the loss.

Source: names, arguments and defaults as in `keras.regularizers`.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_number, check_option
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError, UnknownNameError
from keras_dist.serialization.configurable import Configurable
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry, callable_with_one_array

_EPSILON = 1e-7  # shorter rows are not scaled to length 1


class Regularizer(Configurable):
    """Base of all regularizers; a subclass defines `__call__(x)`, which returns a scalar penalty.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import regularizers
        >>> class Mean(regularizers.Regularizer):
        ...     def __call__(self, x):
        ...         return jnp.mean(x)
        >>> float(Mean()(jnp.array([1.0, 2.0])))
        1.5
    """

    def __call__(self, x: ArrayLike) -> jax.Array | float:
        """Return the penalty on `x`, by default 0."""
        return 0.0


def _check_factor(argument: str, value: Any) -> float:
    """Return `value` as a float, if it is finite and not negative."""
    return check_number(argument, value, 0, example=0.01)


class L1L2(Regularizer):
    """`l1 * sum(abs(x)) + l2 * sum(x**2)`.

    Args:
        l1, l2: finite numbers of at least 0; None is 0.

    Raises:
        ModelError: a factor is invalid.
    """

    def __init__(self, l1: float | None = 0.0, l2: float | None = 0.0) -> None:
        self.l1 = _check_factor("l1", 0.0 if l1 is None else l1)
        self.l2 = _check_factor("l2", 0.0 if l2 is None else l2)

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Return the penalty, a scalar of the dtype of `x`."""
        x = jnp.asarray(x)
        return _sum_of_magnitudes(self.l1, x) + _sum_of_squares(self.l2, x)


class L1(Regularizer):
    """`l1 * sum(abs(x))`.

    Args:
        l1: a finite number of at least 0; None is 0.01.

    Raises:
        ModelError: `l1` is invalid.
    """

    def __init__(self, l1: float | None = 0.01) -> None:
        self.l1 = _check_factor("l1", 0.01 if l1 is None else l1)

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Return the penalty, a scalar of the dtype of `x`."""
        return _sum_of_magnitudes(self.l1, jnp.asarray(x))


class L2(Regularizer):
    """`l2 * sum(x**2)`.

    Args:
        l2: a finite number of at least 0; None is 0.01.

    Raises:
        ModelError: `l2` is invalid.
    """

    def __init__(self, l2: float | None = 0.01) -> None:
        self.l2 = _check_factor("l2", 0.01 if l2 is None else l2)

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Return the penalty, a scalar of the dtype of `x`."""
        return _sum_of_squares(self.l2, jnp.asarray(x))


def _sum_of_magnitudes(factor: float, x: jax.Array) -> jax.Array:
    return jnp.asarray(factor, x.dtype) * jnp.sum(jnp.abs(x))


def _sum_of_squares(factor: float, x: jax.Array) -> jax.Array:
    return jnp.asarray(factor, x.dtype) * jnp.sum(jnp.square(x))


class OrthogonalRegularizer(Regularizer):
    """`factor * mean(abs(u @ v))` over all pairs of normalized rows (or columns) of a matrix.

    Args:
        factor: a finite number of at least 0.
        mode: `"rows"` or `"columns"`.

    Raises:
        ModelError: `factor` is invalid.
        UnknownNameError: no mode has this name.

    Differs from Keras: a single row has no penalty; Keras divides 0 by 0.
    """

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        self.factor = _check_factor("factor", factor)
        self.mode = check_option("mode", mode, ("rows", "columns"), error=UnknownNameError)

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Return the penalty, a scalar of the dtype of the matrix `x`.

        Raises:
            ModelError: `x` is not a matrix.
        """
        x = jnp.asarray(x)
        if x.ndim != 2:
            given = f"an array of shape {x.shape}"
            fix = "choose another regularizer for this weight, or reshape it in one of your own"
            raise ModelError("OrthogonalRegularizer compares the rows or columns of a matrix", given=given, fix=fix)
        rows = x if self.mode == "rows" else x.T
        lengths = jax.lax.rsqrt(jnp.sum(jnp.square(rows), axis=1, keepdims=True))
        rows = rows * jnp.minimum(lengths, 1.0 / _EPSILON)
        size = rows.shape[0]
        products = jnp.abs(rows @ rows.T) * (1.0 - jnp.eye(size, dtype=x.dtype))
        return self.factor * jnp.sum(products) / max(size * (size - 1), 1)


# further names of Keras
l1 = L1
l1_l2 = L1L2
l2 = L2
orthogonal_regularizer = OrthogonalRegularizer

_REGULARIZERS = ObjectRegistry(
    "regularizer",
    __name__,
    Regularizer,
    accepted="a Regularizer or a function of one array",
    example='"l2" or regularizers.L2(0.001)',
    convert=callable_with_one_array,
)


def get(identifier: Any) -> Callable[[Any], Any] | None:
    """Return the regularizer of a name, config, class or function of one array; None for None.

    Raises:
        UnknownNameError: no regularizer has this name.
        ModelError: `identifier` cannot be called with one array.
        ConfigError: a config is invalid.

    Example:
        >>> from keras_dist import regularizers
        >>> regularizers.get("l2").get_config()
        {'l2': 0.01}
    """
    return _REGULARIZERS.get(identifier)


def serialize(regularizer: Any) -> Any:
    """Return the config of a regularizer."""
    return serialize_keras_object(regularizer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the regularizer of a config or name; `custom_objects` maps further names to objects."""
    return _REGULARIZERS.deserialize(config, custom_objects)


__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "") == __name__ and name[0] != "_"]  # pyright: ignore[reportUnsupportedDunderAll]
