"""New arrays, as `jax.numpy` makes them: constants, ranges, windows, diagonals and triangles of matrices."""

# pyright: reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, named, names_in, notes_arguments, operation


def _points(name: str, function: Callable[..., Any], x: ArrayLike, *options: Any) -> jax.Array:
    count = int(arguments.known_number(x, name, f"ops.{name} of an integer"))
    return function(count, *options).astype(arguments.element_type_or_floatx(None))


def _window(name: str, function: Callable[..., Any], doc: str) -> Callable[[ArrayLike], jax.Array]:
    def window(x: ArrayLike) -> jax.Array:
        return _points(name, function, x)

    return operation(named(window, name, doc))


bartlett = _window("bartlett", jnp.bartlett, "Return the triangular window of `x` points.")
blackman = _window("blackman", jnp.blackman, "Return the Blackman window of `x` points.")
hamming = _window("hamming", jnp.hamming, "Return the Hamming window of `x` points.")
hanning = _window("hanning", jnp.hanning, "Return the Hann window of `x` points.")


@operation
def kaiser(x: ArrayLike, beta: ArrayLike) -> jax.Array:
    """Return the Kaiser window of `x` points; a larger `beta` makes it narrower."""
    return _points("kaiser", jnp.kaiser, x, beta)


@operation
def array(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return a new array of the numbers in `x`, which may be nested lists; `dtype=None` keeps the element type."""
    return jnp.array(as_array(x), dtype=arguments.element_type(dtype))


@notes_arguments
def zeros(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of zeros; `dtype=None` stands for `floatx()`."""
    return jnp.zeros(arguments.sizes(shape, "zeros"), arguments.element_type_or_floatx(dtype))


@notes_arguments
def ones(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of ones; `dtype=None` stands for `floatx()`."""
    return jnp.ones(arguments.sizes(shape, "ones"), arguments.element_type_or_floatx(dtype))


@notes_arguments
def empty(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of arbitrary values, which are zeros on JAX; `dtype=None` stands for `floatx()`."""
    return jnp.empty(arguments.sizes(shape, "empty"), arguments.element_type_or_floatx(dtype))


@operation
def full(shape: int | Sequence[int], fill_value: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array filled with `fill_value`, which broadcasts to `shape`; `dtype=None` stands for `floatx()`."""
    return jnp.full(arguments.sizes(shape, "full"), as_array(fill_value), arguments.element_type_or_floatx(dtype))


@operation
def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return zeros of the shape of `x`, and of its element type unless `dtype` is given."""
    return jnp.zeros_like(as_array(x), arguments.element_type(dtype))


@operation
def ones_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return ones of the shape of `x`, and of its element type unless `dtype` is given."""
    return jnp.ones_like(as_array(x), arguments.element_type(dtype))


@operation
def empty_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return arbitrary values, zeros on JAX, of the shape of `x`, and of its element type unless `dtype` is given."""
    return jnp.empty_like(as_array(x), arguments.element_type(dtype))


@operation
def full_like(x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return an array of the shape of `x` filled with `fill_value`, of its element type unless `dtype` is given."""
    return jnp.full_like(as_array(x), as_array(fill_value), arguments.element_type(dtype))


@operation
def arange(
    start: ArrayLike, stop: ArrayLike | None = None, step: ArrayLike | None = None, dtype: DTypeLike | None = None
) -> jax.Array:
    """Return evenly spaced numbers from `start` up to, but without, `stop`.

    Args:
        start: the first number; the end if `stop` is None, and the first is 0.
        stop: the end.
        step: the distance; None for 1.
        dtype: element type of the result; None for the common type of the arguments.

    Raises:
        ModelError: an argument is symbolic or traced; the count of numbers would be the shape of the result.
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
    """Return `num` evenly spaced numbers from `start` to `stop`; for the arguments see `jax.numpy.linspace`."""
    return jnp.linspace(as_array(start), as_array(stop), num, endpoint, retstep, arguments.element_type(dtype), axis)


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
    """Return `num` numbers from `base ** start` to `base ** stop`, evenly spaced on a logarithmic scale.

    Other arguments as in `linspace`.
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
    """Return `num` numbers from `start` to `stop` in geometric progression.

    Other arguments as in `linspace`.
    """
    return jnp.geomspace(as_array(start), as_array(stop), num, endpoint, arguments.element_type(dtype), axis)


@operation
def meshgrid(*x: ArrayLike, indexing: str = "xy") -> list[jax.Array]:
    """Return coordinate arrays of a grid from coordinate vectors; see `jax.numpy.meshgrid`."""
    return jnp.meshgrid(*map(as_array, x), indexing=indexing)


@notes_arguments
def identity(n: int, dtype: DTypeLike | None = None) -> jax.Array:
    """Return the identity matrix (n, n); `dtype=None` stands for `floatx()`."""
    return jnp.identity(n, arguments.element_type_or_floatx(dtype))


@notes_arguments
def eye(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> jax.Array:
    """Return a matrix (N, M) with ones on the `k`-th diagonal; `M=None` stands for `N`, `dtype=None` for `floatx()`."""
    return jnp.eye(N, M, k, arguments.element_type_or_floatx(dtype))


@notes_arguments
def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> jax.Array:
    """Return a matrix (N, M) with ones on and below the `k`-th diagonal; for the arguments see `eye`."""
    return jnp.tri(N, M, k, arguments.element_type_or_floatx(dtype))


@operation
def tril(x: ArrayLike, k: int = 0) -> jax.Array:
    """Set elements of matrices (..., m, n) above the `k`-th diagonal to 0; positive `k` are above the main one."""
    return jnp.tril(as_array(x), operator.index(k))


@operation
def triu(x: ArrayLike, k: int = 0) -> jax.Array:
    """Set elements of matrices (..., m, n) below the `k`-th diagonal to 0; positive `k` are above the main one."""
    return jnp.triu(as_array(x), operator.index(k))  # JAX computes k - 1, in uint8 255 for 0


@operation
def diag(x: ArrayLike, k: int = 0) -> jax.Array:
    """Return the `k`-th diagonal of a matrix; for a vector, the matrix with this diagonal."""
    return jnp.diag(as_array(x), k)


@operation
def diagflat(x: ArrayLike, k: int = 0) -> jax.Array:
    """Return the matrix whose `k`-th diagonal is the flattened array."""
    return jnp.diagflat(as_array(x), operator.index(k))


@operation
def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> jax.Array:
    """Return diagonals of matrices with rows along `axis1`, as the last dim; see `jax.numpy.diagonal`.

    Raises:
        ModelError: `axis1` and `axis2` are the same dim.
    """
    x = as_array(x)
    if x.ndim and axis1 % x.ndim == axis2 % x.ndim:
        raise argument_error("axis2", axis2, f"another dim than axis1={axis1}", example=1 if axis1 == 0 else 0)
    return jnp.diagonal(x, offset, axis1, axis2)


@operation
def trace(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> jax.Array:
    """Return the sums of diagonals of matrices; for the arguments see `diagonal`."""
    return jnp.trace(as_array(x), offset, axis1, axis2)


@operation
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> jax.Array:
    """Return the Vandermonde matrix of a vector: powers N - 1 to 0 of each number; see `jax.numpy.vander`.

    Raises:
        ModelError: `x` is not a vector, or `N` is not a count.
    """
    x = as_array(x)
    if x.ndim != 1:
        raise argument_error("x", x, "a row: an array of one dim")
    if N is not None and not is_int(N, 0):
        raise argument_error("N", N, "an integer from 0 on, or None")
    return jnp.vander(x, N, increasing)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
