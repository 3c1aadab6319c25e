"""Linear algebra: Keras's names on `jax.numpy.linalg` and `jax.scipy.linalg`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._types import ArrayLike
from keras_dist.ops.operation import as_array, names_in, operation, unary

det = unary("det", jnp.linalg.det, "The determinant of each matrix `(..., n, n)`, of shape `(...,)`.")


@operation
def qr(x: ArrayLike, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    """Return `(q, r)`: orthonormal columns and an upper triangular matrix, whose product is `x`.

    Args:
        x: matrices `(..., m, n)`.
        mode: "reduced" for `min(m, n)` columns, "complete" for `m`.
    """
    q, r = jnp.linalg.qr(as_array(x), mode=mode)
    return q, r


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
