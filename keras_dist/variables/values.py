"""Checks of values and shapes of variables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import initializers, random
from keras_dist._support.arguments import is_int
from keras_dist._support.array_operators import Operators, native, value_of
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import ArrayLike, DTypeLike, Shape
from keras_dist.distribution.plan import Row
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.variables.initial_values import check_initial_value


def checked_value(value: ArrayLike, variable: Operators | Row) -> ArrayLike:
    """Return `value` in the dtype of `variable`, if it has its shape, is numeric, and does not overflow."""
    value = check_value(value, variable)
    return value if getattr(value, "dtype", None) == variable.dtype else jnp.asarray(native(value), variable.dtype)


def check_value(value: ArrayLike, variable: Operators | Row) -> ArrayLike:
    """Return `value` after the checks of `checked_value`; host arrays are cast."""
    value = value_of(value)
    if getattr(value, "dtype", None) == variable.dtype and np.shape(value) == variable.shape:
        return value
    _check_numbers(value, variable)
    if np.shape(value) != variable.shape:
        summary = f"cannot assign to {variable.path!r}: the shape differs from {variable.shape}"
        fix = "reshape the value, or assign to another variable"
        raise ModelError(summary, given=f"shape {np.shape(value)}", fix=fix)
    if jnp.issubdtype(variable.dtype, jnp.integer) and not isinstance(value, jax.Array):
        check_fits(np.asarray(value), repr(variable.path))
    if jnp.issubdtype(variable.dtype, jnp.floating) and not isinstance(value, jax.Array):
        return _finite_as_before(np.asarray(native(value)), variable)
    return value


def _finite_as_before(value: np.ndarray, variable: Operators | Row) -> np.ndarray:
    """Cast a host array; raise if a finite value becomes infinite."""
    with np.errstate(over="ignore"):
        cast = value.astype(variable.dtype)
    lost = np.isinf(cast) & np.isfinite(value) if cast.dtype != value.dtype else np.zeros((), bool)
    if lost.any():
        summary = f"cannot assign to {variable.path!r}: a value exceeds the range of {variable.dtype}"
        fix = "scale the values, or use a variable of a wider dtype"
        raise ModelError(summary, given=f"{shorten(value[lost].flat[0])} of {value.dtype}", fix=fix)
    return cast


def _check_numbers(value: Any, variable: Operators | Row) -> None:
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    is_number = dtype == np.bool_ or jnp.issubdtype(dtype, jnp.number)
    loses_part = _is_complex(dtype) and not _is_complex(variable.dtype)
    if not is_number or loses_part:
        summary = f"cannot assign to {variable.path!r}: the value must cast to {variable.dtype}"
        raise ModelError(summary, given=with_type(value), fix="convert it first, for example np.asarray(value).real")


def _is_complex(dtype: DTypeLike) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def initial_array(
    initializer: Any | ArrayLike, shape: Shape | int | None, dtype: DTypeLike | None, label: str
) -> jax.Array:
    """Return a value, or the output of an initializer."""
    if callable(initializer) or isinstance(initializer, str | dict):
        return drawn(initializer, () if shape is None else shape, dtype or "float32", label)
    array = np.asarray(initializer) if isinstance(initializer, bool | int | float | list | tuple) else initializer
    array = native(array)
    if isinstance(array, np.ndarray) and not jnp.issubdtype(dtype or array.dtype, jnp.inexact):
        check_fits(array, label)
    value = jnp.asarray(value_of(array), dtype or jax.dtypes.canonicalize_dtype(array.dtype))
    check_initial_value(value, value.shape if shape is None else check_shape(shape, label), label, initializer)
    return value


def drawn(initializer: Any, shape: Shape | int, dtype: DTypeLike, label: str) -> jax.Array:
    """Return the output of an initializer for the next key of the seed; `label` names the weight in errors."""
    dims, dtype = check_shape(shape, label), jnp.dtype(dtype)
    draw = initializers.get(initializer)
    value = draw(dims, dtype, key=random.next_key())
    check_initial_value(value, dims, label, initializer)
    return jnp.asarray(value, dtype)


def check_shape(shape: Any, label: str) -> tuple[int, ...]:
    """Return `shape` as a tuple of positive integers."""
    dims = (shape,) if is_int(shape) else tuple(shape)
    given = f"shape {shorten(shape)}"
    if None in dims:
        fix = (
            "give the dim a size in Input(shape), or pool over it first; leave out the batch, the first dim of a shape"
        )
        raise ModelError(f"the shape of weight {label} depends on a dim of unknown size", given=given, fix=fix)
    if not all(is_int(size, 1) for size in dims):
        fix = "for example add_weight((3, 4))"
        raise ModelError(f"the shape of weight {label} must be integers of at least 1", given=given, fix=fix)
    return tuple(int(size) for size in dims)
