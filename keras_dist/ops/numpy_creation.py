"""New arrays: constants, ranges, matrices, windows."""

# pyright: reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, names_in, notes_arguments, operation


def _points(name: str, function: Callable[..., Any], x: ArrayLike, *options: Any) -> jax.Array:
    count = int(arguments.known_number(x, name, f"ops.{name} of an integer"))
    return function(count, *options).astype(arguments.element_type_or_floatx(None))


@operation
def bartlett(x: ArrayLike) -> jax.Array:
    """Return the triangular window of `x` points."""
    return _points("bartlett", jnp.bartlett, x)


@operation
def blackman(x: ArrayLike) -> jax.Array:
    """Return the Blackman window of `x` points."""
    return _points("blackman", jnp.blackman, x)


@operation
def hamming(x: ArrayLike) -> jax.Array:
    """Return the Hamming window of `x` points."""
    return _points("hamming", jnp.hamming, x)


@operation
def hanning(x: ArrayLike) -> jax.Array:
    """Return the Hann window of `x` points."""
    return _points("hanning", jnp.hanning, x)


@operation
def kaiser(x: ArrayLike, beta: ArrayLike) -> jax.Array:
    """Return the Kaiser window of `x` points.

    Args:
        x: a number of points.
        beta: how narrow it is.
    """
    return _points("kaiser", jnp.kaiser, x, beta)


@operation
def array(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of what `x` holds.

    Args:
        x: an array, a number, or nested lists of numbers.
        dtype: its element type; None for that of `x`.
    """
    return jnp.array(as_array(x), dtype=arguments.element_type(dtype))


@notes_arguments
def zeros(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of zeros.

    Args:
        shape: its dims.
        dtype: its element type; None for that of weights.
    """
    return jnp.zeros(arguments.sizes(shape, "zeros"), arguments.element_type_or_floatx(dtype))


@notes_arguments
def ones(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of ones.

    Args:
        shape: its dims.
        dtype: its element type; None for that of weights.
    """
    return jnp.ones(arguments.sizes(shape, "ones"), arguments.element_type_or_floatx(dtype))


@notes_arguments
def empty(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of any values: on JAX, zeros.

    Args:
        shape: its dims.
        dtype: its element type; None for that of weights.
    """
    return jnp.empty(arguments.sizes(shape, "empty"), arguments.element_type_or_floatx(dtype))


@operation
def full(shape: int | Sequence[int], fill_value: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of one value.

    Args:
        shape: its dims.
        fill_value: a number, or an array that broadcasts to the shape.
        dtype: its element type; None for that of weights.
    """
    return jnp.full(arguments.sizes(shape, "full"), as_array(fill_value), arguments.element_type_or_floatx(dtype))


@operation
def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return zeros in the shape of an array.

    Args:
        x: the array.
        dtype: their element type; None for that of `x`.
    """
    return jnp.zeros_like(as_array(x), arguments.element_type(dtype))


@operation
def ones_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return ones in the shape of an array.

    Args:
        x: the array.
        dtype: their element type; None for that of `x`.
    """
    return jnp.ones_like(as_array(x), arguments.element_type(dtype))


@operation
def empty_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return any values, on JAX zeros, in the shape of an array.

    Args:
        x: the array.
        dtype: their element type; None for that of `x`.
    """
    return jnp.empty_like(as_array(x), arguments.element_type(dtype))


@operation
def full_like(x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return one value in the shape of an array.

    Args:
        x: the array.
        fill_value: a number, or an array that broadcasts to the shape.
        dtype: its element type; None for that of `x`.
    """
    return jnp.full_like(as_array(x), as_array(fill_value), arguments.element_type(dtype))


@operation
def arange(
    start: ArrayLike, stop: ArrayLike | None = None, step: ArrayLike | None = None, dtype: DTypeLike | None = None
) -> jax.Array:
    """Return evenly spaced numbers from `start` up to `stop`, which is not among them.

    Args:
        start: the first; without `stop` the end, and 0 is the first.
        stop: the end.
        step: the distance; None for 1.
        dtype: element type of the result; None for that of the arguments.

    Raises:
        ModelError: one of these has no value: how many numbers there are would be the shape of the result.
    """
    fix = "numbers as arguments; ops.cumsum(ops.ones_like(x), axis=-1) - 1 counts along a dim"
    given = [value for value in (start, stop, step) if value is not None]
    if dtype is None:
        dtype = jnp.result_type(*(getattr(value, "dtype", type(value)) for value in given))
    numbers = [
        value if value is None else arguments.known_number(value, "arange", fix) for value in (start, stop, step)
    ]
    return jnp.arange(*numbers, dtype=arguments.element_type(dtype))


@operation
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Any:
    """Return `num` evenly spaced numbers from `start` to `stop`; with `retstep` also their distance.

    Args:
        start: the first, or an array of first ones.
        stop: the last.
        num: how many.
        endpoint: whether `stop` is one of them.
        retstep: whether to return `(numbers, distance)`.
        dtype: element type of the result; by default a float.
        axis: where the dim of the numbers is in the result.
    """
    dtype = arguments.element_type(dtype)
    return jnp.linspace(as_array(start), as_array(stop), num, endpoint, retstep, dtype, axis)


@operation
def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> jax.Array:
    """Return `num` numbers from `base ** start` to `base ** stop`, whose logarithms are evenly spaced.

    Args:
        start: the logarithm of the first, or an array of first ones.
        stop: the logarithm of the last.
        num: how many.
        endpoint: whether the last is one of them.
        base: of the logarithms.
        dtype: element type of the result; by default a float.
        axis: where the dim of the numbers is in the result.
    """
    return jnp.logspace(as_array(start), as_array(stop), num, endpoint, base, arguments.element_type(dtype), axis)


@operation
def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> jax.Array:
    """Return `num` numbers from `start` to `stop`, each by the same factor larger than the one before.

    Args:
        start: the first, or an array of first ones.
        stop: the last.
        num: how many.
        endpoint: whether `stop` is one of them.
        dtype: element type of the result; by default a float.
        axis: where the dim of the numbers is in the result.
    """
    return jnp.geomspace(as_array(start), as_array(stop), num, endpoint, arguments.element_type(dtype), axis)


@operation
def meshgrid(*x: ArrayLike, indexing: str = "xy") -> list[jax.Array]:
    """Return the coordinates of the points of a grid: an array of its shape for each of several rows.

    Args:
        *x: rows of coordinates.
        indexing: "xy" if the second row is along the first dim of the results; "ij" for the order of the rows.
    """
    return jnp.meshgrid(*map(as_array, x), indexing=indexing)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
