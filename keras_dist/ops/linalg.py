"""Linear algebra: Keras's names on `jax.numpy.linalg` and `jax.lax.linalg`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_option
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import ModelError
from keras_dist.ops import numpy_arguments
from keras_dist.ops.operation import as_array, floating, names_in, operation, unary


@operation
def cholesky(x: ArrayLike, upper: bool = False) -> jax.Array:
    """Return the Cholesky factors of symmetric positive definite matrices (..., n, n).

    Args:
        x: the matrices.
        upper: whether to return `R` with `x = R^T R`, instead of `L` with `x = L L^T`.

    Raises:
        ModelError: a matrix is not positive definite; in compiled steps its factor is NaN.
    """
    factor = jnp.linalg.cholesky(_square("cholesky", x), upper=upper)
    if not is_traced(factor) and jnp.any(jnp.isnan(factor)):
        summary = "cholesky: a matrix is not positive definite, or not symmetric"
        raise ModelError(summary, given=f"an array of shape {factor.shape}", fix="add a small multiple of ops.eye(n)")
    return factor


@operation
def cholesky_inverse(x: ArrayLike, upper: bool = False) -> jax.Array:
    """Invert matrices (..., n, n) given their Cholesky factors; `upper` as in `cholesky`."""
    factor = _square("cholesky_inverse", x)
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    inverse = _solved_triangular(factor, identity, not upper)
    other = jnp.swapaxes(inverse, -1, -2)
    return inverse @ other if upper else other @ inverse


det = unary("det", lambda x: jnp.linalg.det(_square("det", x)), "Return the determinants (...) of matrices.")
inv = unary("inv", lambda x: jnp.linalg.inv(_square("inv", x)), "Invert matrices (..., n, n).")


@operation
def eig(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return the complex eigenvalues (..., n) and eigenvectors (..., n, n) of matrices; on CPU and GPU only."""
    values, vectors = jnp.linalg.eig(_square("eig", x))
    return values, vectors


@operation
def eigh(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return the ascending eigenvalues (..., n) and the eigenvectors (..., n, n) of symmetric matrices."""
    values, vectors = jnp.linalg.eigh(_square("eigh", x))
    return values, vectors


@operation
def lu_factor(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return the LU decomposition of matrices: both triangles in one (..., m, n), and the pivots (..., min(m, n))."""
    triangles, pivots, _ = jax.lax.linalg.lu(floating(_matrices("lu_factor", x)))
    return triangles, pivots


@operation
def norm(
    x: ArrayLike, ord: int | float | str | None = None, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> jax.Array:
    """Return norms of vectors or matrices; for the arguments see `jax.numpy.linalg.norm`."""
    return jnp.linalg.norm(floating(as_array(x)), ord=ord, axis=numpy_arguments.axes(axis), keepdims=keepdims)


@operation
def qr(x: ArrayLike, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    """Return the QR decomposition `(q, r)` of matrices (..., m, n); q has min(m, n) columns, in mode `"complete"` m."""
    chosen = check_option("mode", mode, ("reduced", "complete"))
    q, r = jnp.linalg.qr(_matrices("qr", x), mode=chosen)
    return q, r


@operation
def svd(x: ArrayLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition `(u, s, v)` of matrices, `x = u @ diag(s) @ v`.

    Args:
        x: (..., m, n).
        full_matrices: whether u and v are square, instead of having min(m, n) columns and rows.
        compute_uv: whether to return u and v; otherwise s alone is returned.
    """
    found: Any = jnp.linalg.svd(_matrices("svd", x), full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(found) if compute_uv else found


@operation
def solve(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """Solve `a @ x = b` for x, with `a` of shape (..., n, n) and `b` of shape (..., n) or (..., n, k)."""
    matrices, sides = _equations("solve", a, b)
    if sides.ndim == matrices.ndim - 1:
        return jnp.linalg.solve(matrices, sides[..., None])[..., 0]
    return jnp.linalg.solve(matrices, sides)


@operation
def solve_triangular(a: ArrayLike, b: ArrayLike, lower: bool = False) -> jax.Array:
    """Solve `a @ x = b` as in `solve`, reading only the upper triangle of `a`, or the `lower` one."""
    return _solved_triangular(*_equations("solve_triangular", a, b), lower)


@operation
def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None) -> jax.Array:
    """Return the least-squares solution of `a @ x = b` with the smallest norm.

    Args:
        a: (m, n).
        b: (m,) or (m, k).
        rcond: singular values below this fraction of the largest are treated as 0; None for rounding errors.
    """
    return jnp.linalg.lstsq(as_array(a), as_array(b), rcond=rcond)[0]


@operation
def matrix_rank(x: ArrayLike, tol: float | None = None) -> jax.Array:
    """Return the ranks of matrices (..., m, n), int32; singular values up to `tol` are treated as 0."""
    return jnp.linalg.matrix_rank(_matrices("matrix_rank", x), tol=tol).astype(jnp.int32)


@operation
def pinv(x: ArrayLike, rcond: float | None = None) -> jax.Array:
    """Return the pseudo-inverses (..., n, m) of matrices (..., m, n); for `rcond` see `lstsq`."""
    return jnp.linalg.pinv(_matrices("pinv", x), rtol=rcond)


@operation
def jvp(fun: Callable[..., PyTree], primals: PyTree, tangents: PyTree, has_aux: bool = False) -> Any:
    """Return `fun(*primals)` and its derivative in the direction `tangents`; for the arguments see `jax.jvp`."""
    return jax.jvp(fun, primals, tangents, has_aux=has_aux)


def _matrices(name: str, x: ArrayLike) -> jax.Array:
    array = as_array(x)
    if array.ndim < 2:
        raise _wrong(name, array.shape, "matrices (..., m, n)")
    return array


def _square(name: str, x: ArrayLike) -> jax.Array:
    array = _matrices(name, x)
    if array.shape[-1] != array.shape[-2]:
        raise _wrong(name, array.shape, "square matrices (..., n, n)")
    return array


def _equations(name: str, a: ArrayLike, b: ArrayLike) -> tuple[jax.Array, jax.Array]:
    matrices, sides = _square(name, a), as_array(b)
    rows = sides.shape[-1:] if sides.ndim == matrices.ndim - 1 else sides.shape[-2:-1]
    if not rows or (sides.ndim <= matrices.ndim and rows[0] != matrices.shape[-1]):
        expected = f"b with {matrices.shape[-1]} rows: (..., n) or (..., n, k)"
        raise _wrong(name, f"{matrices.shape} and {sides.shape}", expected)
    return matrices, sides


def _solved_triangular(a: jax.Array, b: jax.Array, lower: bool) -> jax.Array:
    is_vector = b.ndim == a.ndim - 1
    dtype = jnp.result_type(a, b, 0.0)
    sides = (b[..., None] if is_vector else b).astype(dtype)
    found = jax.lax.linalg.triangular_solve(a.astype(dtype), sides, left_side=True, lower=lower)
    return found[..., 0] if is_vector else found


def _wrong(name: str, shape: Any, expected: str) -> ModelError:
    return ModelError(f"{name} takes {expected}", given=f"shape {shape}", fix="reshape it, or take a part of it")


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
