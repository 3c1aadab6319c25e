"""Diagonals and triangles of matrices."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, names_in, notes_arguments, operation


@notes_arguments
def identity(n: int, dtype: DTypeLike | None = None) -> jax.Array:
    """Return the identity matrix `(n, n)`.

    Args:
        n: the number of rows.
        dtype: its element type; None for that of weights.
    """
    return jnp.identity(n, arguments.element_type_or_floatx(dtype))


@notes_arguments
def eye(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> jax.Array:
    """Return a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        N: the number of rows.
        M: the number of columns; None for as many.
        k: which diagonal: 0 for the main one, above 0 for those above.
        dtype: its element type; None for that of weights.
    """
    return jnp.eye(N, M, k, arguments.element_type_or_floatx(dtype))


@notes_arguments
def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> jax.Array:
    """Return a matrix with ones on and below a diagonal, and zeros above.

    Args:
        N: the number of rows.
        M: the number of columns; None for as many.
        k: which diagonal: 0 for the main one, above 0 for those above.
        dtype: its element type; None for that of weights.
    """
    return jnp.tri(N, M, k, arguments.element_type_or_floatx(dtype))


@operation
def tril(x: ArrayLike, k: int = 0) -> jax.Array:
    """Return matrices with zeros above a diagonal.

    Args:
        x: matrices `(..., m, n)`.
        k: which diagonal: 0 for the main one, above 0 for those above.
    """
    return jnp.tril(as_array(x), k)


@operation
def triu(x: ArrayLike, k: int = 0) -> jax.Array:
    """Return matrices with zeros below a diagonal.

    Args:
        x: matrices `(..., m, n)`.
        k: which diagonal: 0 for the main one, above 0 for those above.
    """
    return jnp.triu(as_array(x), k)


@operation
def diag(x: ArrayLike, k: int = 0) -> jax.Array:
    """Return the diagonal of a matrix; for a row the matrix that has it as its diagonal.

    Args:
        x: a matrix, or a row.
        k: which diagonal: 0 for the main one, above 0 for those above.
    """
    return jnp.diag(as_array(x), k)


@operation
def diagflat(x: ArrayLike, k: int = 0) -> jax.Array:
    """Return the matrix that has all elements of an array as its diagonal.

    Args:
        x: an array.
        k: which diagonal: 0 for the main one, above 0 for those above.
    """
    return jnp.diagflat(as_array(x), k)


@operation
def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> jax.Array:
    """Return the diagonals of matrices, as the last dim.

    Args:
        x: an array of two dims or more.
        offset: which diagonal: 0 for the main one, above 0 for those above.
        axis1: the dim of the rows of the matrices.
        axis2: that of their columns.

    Raises:
        ModelError: these are one dim.
    """
    x = as_array(x)
    if x.ndim and axis1 % x.ndim == axis2 % x.ndim:
        raise argument_error("axis2", axis2, f"another dim than axis1={axis1}", example=1 if axis1 == 0 else 0)
    return jnp.diagonal(x, offset, axis1, axis2)


@operation
def trace(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> jax.Array:
    """Return the sums of the diagonals of matrices.

    Args:
        x: an array of two dims or more.
        offset: which diagonal: 0 for the main one, above 0 for those above.
        axis1: the dim of the rows of the matrices.
        axis2: that of their columns.
    """
    return jnp.trace(as_array(x), offset, axis1, axis2)


@operation
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> jax.Array:
    """Return the matrix of powers of each number of a row.

    Args:
        x: a row.
        N: how many powers, from 0 on; None for as many as there are numbers.
        increasing: whether the 0th is the first column instead of the last.

    Raises:
        ModelError: `x` has another number of dims, or `N` is no number.
    """
    x = as_array(x)
    if x.ndim != 1:
        raise argument_error("x", x, "a row: an array of one dim")
    if N is not None and not is_int(N, 0):
        raise argument_error("N", N, "an integer from 0 on, or None")
    return jnp.vander(x, N, increasing)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
