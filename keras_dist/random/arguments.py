"""What the arguments of random functions may be."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from keras_dist.errors import ModelError, shorten, type_name


def check_seed(seed: object) -> int:
    """`seed` as an int, 0 <= seed < 2**32.

    Raises:
        ModelError: it is not one.
    """
    try:
        value = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        value = -1
    if isinstance(seed, bool) or not 0 <= value < 2**32:
        raise ModelError(
            "`seed` is not a random seed",
            given=f"{shorten(seed)} of type {type_name(seed)}",
            expected="an integer, 0 <= seed < 2**32",
            fix="for example seed=1337",
        )
    return value


def check_shape(shape: Any) -> tuple[int, ...]:
    """`shape` as a tuple of ints, each at least 0.

    Raises:
        ModelError: it is none.
    """
    try:
        dims = tuple(operator.index(size) for size in shape)
    except TypeError:
        dims = (-1,)
    if any(size < 0 for size in dims):
        raise ModelError(
            "`shape` is not the shape of an array",
            given=f"shape={shorten(shape)}",
            expected="a tuple of integers of at least 0",
            fix="for example shape=(2, 3), or shape=() for one number",
        )
    return dims


def check_float_dtype(dtype: Any) -> np.dtype:
    """`dtype` as one of floating-point numbers; None is float32.

    Raises:
        ModelError: it is none.
    """
    return _check_dtype("float32" if dtype is None else dtype, jnp.floating, "a floating-point dtype", "float32")


def check_int_dtype(dtype: Any) -> np.dtype:
    """`dtype` as one of integers.

    Raises:
        ModelError: it is none.
    """
    return _check_dtype(dtype, jnp.integer, "an integer dtype", "int32")


def check_rate(rate: Any) -> float:
    """`rate` as a number from 0 to 1.

    Raises:
        ModelError: it is none.
    """
    if not isinstance(rate, int | float | np.number) or isinstance(rate, bool) or not 0 <= rate <= 1:
        raise ModelError(
            "`rate` is not a fraction",
            given=f"rate={shorten(rate)}",
            expected="a number from 0 to 1",
            fix="for example rate=0.5",
        )
    return float(rate)


def _check_dtype(dtype: Any, kind: Any, expected: str, example: str) -> np.dtype:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if not jnp.issubdtype(found, kind):
        raise ModelError(
            f"`dtype` is not {expected}",
            given=f"dtype={shorten(dtype)}",
            expected=expected,
            fix=f"for example dtype={example!r}",
        )
    return found
