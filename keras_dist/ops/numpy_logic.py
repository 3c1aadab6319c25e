"""Comparisons, truth values, and choices between arrays."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import ArrayLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, binary, names_in, operation, unary

bitwise_invert = unary("bitwise_invert", jnp.invert, "The bits that are not set; `not x` of bools.")
bitwise_not = bitwise_invert
equal = binary("equal", jnp.equal, "`x1 == x2`.")
greater = binary("greater", jnp.greater, "`x1 > x2`.")
greater_equal = binary("greater_equal", jnp.greater_equal, "`x1 >= x2`.")
less = binary("less", jnp.less, "`x1 < x2`.")
less_equal = binary("less_equal", jnp.less_equal, "`x1 <= x2`.")
logical_and = binary("logical_and", jnp.logical_and, "Whether both elements are true, or not 0.")
logical_not = unary("logical_not", jnp.logical_not, "Whether each element is false, or 0.")
logical_or = binary("logical_or", jnp.logical_or, "Whether one of two elements is true, or not 0.")
logical_xor = binary("logical_xor", jnp.logical_xor, "Whether exactly one of two elements is true, or not 0.")
not_equal = binary("not_equal", jnp.not_equal, "`x1 != x2`.")


@operation
def isclose(x1: ArrayLike, x2: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> jax.Array:
    """Return whether `abs(x1 - x2) <= atol + rtol * abs(x2)`, for each element.

    Args:
        x1: an array.
        x2: an array that broadcasts with it.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: whether two NaNs are close.
    """
    return jnp.isclose(as_array(x1), as_array(x2), rtol, atol, equal_nan)


@operation
def allclose(
    x1: ArrayLike, x2: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> jax.Array:
    """Return whether all elements are close; arguments as of `isclose`."""
    return jnp.allclose(as_array(x1), as_array(x2), rtol, atol, equal_nan)


@operation
def isin(x1: ArrayLike, x2: ArrayLike, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """Return whether each element of `x1` is among those of `x2`.

    Args:
        x1: an array.
        x2: an array.
        assume_unique: no effect on values.
        invert: whether to return the opposite.
    """
    return jnp.isin(as_array(x1), as_array(x2), assume_unique=assume_unique, invert=invert)


@operation
def nonzero(x: ArrayLike) -> tuple[jax.Array, ...]:
    """Return the indices of the elements that are not 0: an array for each dim.

    Raises:
        ModelError: `x` has no values: their number would be the shape of the result.
    """
    return jnp.nonzero(arguments.known(x, "nonzero", "ops.where(condition, x1, x2) keeps the shape"))


@operation
def where(condition: ArrayLike, x1: ArrayLike | None = None, x2: ArrayLike | None = None) -> Any:
    """Return elements of `x1` where the condition holds, of `x2` elsewhere; without both, the indices where it holds.

    Args:
        condition: an array of truth values.
        x1: an array or number that broadcasts with it.
        x2: the same.

    Raises:
        ModelError: one of `x1` and `x2` is missing; or both, and the condition has no values.
    """
    if x1 is None and x2 is None:
        return jnp.nonzero(arguments.known(condition, "where", "ops.where(condition, x1, x2) keeps the shape"))
    if x1 is None or x2 is None:
        missing = "x1" if x1 is None else "x2"
        raise argument_error(missing, None, "an array, where the other one is given", example=0)
    return jnp.where(as_array(condition), as_array(x1), as_array(x2))


@operation
def select(condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0) -> jax.Array:
    """Return for each element that of the first choice whose condition holds.

    Args:
        condlist: arrays of truth values.
        choicelist: as many arrays.
        default: where no condition holds.

    Raises:
        ModelError: conditions or choices are no lists, or empty ones.
    """
    for argument, value in (("condlist", condlist), ("choicelist", choicelist)):
        if not isinstance(value, list | tuple) or not value:
            raise argument_error(argument, value, "a list of arrays, at least one")
    return jnp.select([*map(as_array, condlist)], [*map(as_array, choicelist)], as_array(default))


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
