"""Sums of products: of matrices, rows, and whatever `einsum` names."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.ops.operation import as_array, binary, names_in, operation, unary


def _sum_of(*arrays: jax.Array) -> Any:
    """Return the element type of sums: 32 bits for those of 8, which hardware has; None for JAX's own."""
    return "int32" if all(array.dtype == "int8" for array in arrays) else None


def _matmul(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return jnp.matmul(x1, x2, preferred_element_type=_sum_of(x1, x2))


def _slogdet(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    sign, logabsdet = jnp.linalg.slogdet(x)
    return sign, logabsdet


dot = binary("dot", jnp.dot, "The dot products of the rows of `x1` and the columns of `x2`.")
inner = binary("inner", jnp.inner, "The dot products of both along their last dims.")
kron = binary("kron", jnp.kron, "The Kronecker product: `x2` times each element of `x1`.")
matmul = binary("matmul", _matmul, "The products of matrices `(..., m, n)` and `(..., n, p)`; int32 for int8.")
outer = binary("outer", jnp.outer, "The products of each element of `x1` and each of `x2`, as a matrix.")
slogdet = unary("slogdet", _slogdet, "The sign, and the logarithm of the absolute value, of each determinant.")
vdot = binary("vdot", jnp.vdot, "The dot product of both, flattened; complex `x1` is conjugated.")


@operation
def cross(
    x1: ArrayLike, x2: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> jax.Array:
    """Return the cross products of vectors of two or three elements.

    Args:
        x1: vectors.
        x2: vectors.
        axisa: their dim in `x1`.
        axisb: their dim in `x2`.
        axisc: their dim in the result.
        axis: in place of the other three.
    """
    return jnp.cross(as_array(x1), as_array(x2), axisa, axisb, axisc, axis)


@operation
def einsum(subscripts: str, *operands: ArrayLike, **kwargs: Any) -> jax.Array:
    """Return the sums of products that the subscripts name; int32 for int8.

    Args:
        subscripts: letters for the dims of each operand, and after "->" for those of the result, as "ij,jk->ik".
        *operands: arrays.
        **kwargs: as `jax.numpy.einsum` takes them.
    """
    arrays = [as_array(operand) for operand in operands]
    return jnp.einsum(subscripts, *arrays, **{"preferred_element_type": _sum_of(*arrays), **kwargs})


@operation
def tensordot(x1: ArrayLike, x2: ArrayLike, axes: int | Sequence[Any] = 2) -> jax.Array:
    """Return the sums of products over several dims.

    Args:
        x1: an array.
        x2: an array.
        axes: how many last dims of `x1` and first ones of `x2`; or those of each, as two lists.
    """
    return jnp.tensordot(as_array(x1), as_array(x2), axes)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
