"""Segment reductions, largest values, special functions, and Fourier transforms (`ops.spectra`)."""

# pyright: reportUnknownMemberType=false
# ruff: noqa: F403  # each file lists its names in `__all__`

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops import numpy_arguments
from keras_dist.ops.operation import as_array, floating, named, names_in, operation, unary
from keras_dist.ops.spectra import *

rsqrt = unary("rsqrt", lambda x: jax.lax.rsqrt(floating(x)), "Return `1 / sqrt(x)`.")
erf = unary("erf", lambda x: jax.lax.erf(floating(x)), "Return the error function of `x`.")
erfc = unary("erfc", lambda x: jax.lax.erfc(floating(x)), "Return `1 - erf(x)`, precise for large `x`.")
erfinv = unary("erfinv", lambda x: jax.lax.erf_inv(floating(x)), "Return the inverse of the error function.")


@operation
def logdet(x: ArrayLike) -> jax.Array:
    """Return the logarithms (...) of the absolute determinants of matrices (..., n, n)."""
    return jnp.linalg.slogdet(as_array(x))[1]


@operation
def logsumexp(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> jax.Array:
    """Return `log(sum(exp(x)))` without overflow.

    Args:
        x: an array.
        axis: the dims to reduce; None for all.
        keepdims: whether reduced dims stay with size 1.
    """
    return jax.nn.logsumexp(as_array(x), axis=numpy_arguments.axes(axis), keepdims=keepdims)


@operation
def cdist(x: ArrayLike, y: ArrayLike) -> jax.Array:
    """Return the distances (..., m, n) between points (..., m, dims) and (..., n, dims).

    Raises:
        ModelError: the points have different numbers of dims.
    """
    one, other = as_array(x), as_array(y)
    if min(one.ndim, other.ndim) < 2 or one.shape[-1] != other.shape[-1]:
        given = f"shapes {one.shape} and {other.shape}"
        fix = "ops.expand_dims(x, 0) for a single point"
        raise ModelError("cdist takes lists of points: (..., m, dims) and (..., n, dims)", given=given, fix=fix)
    return jnp.sqrt(jnp.sum(jnp.square(one[..., :, None, :] - other[..., None, :, :]), axis=-1))


@operation
def top_k(x: ArrayLike, k: int, sorted: bool = True) -> tuple[jax.Array, jax.Array]:
    """Return the `k` largest values along the last dim in descending order, and their indices; `sorted` is unused."""
    values, indices = jax.lax.top_k(as_array(x), k)
    return values, indices


@operation
def in_top_k(targets: ArrayLike, predictions: ArrayLike, k: int) -> jax.Array:
    """Return whether class `targets` (...) is among the `k` largest `predictions` (..., classes); NaN is smallest."""
    values = as_array(predictions)
    of_target = jnp.take_along_axis(values, as_array(targets, "int32")[..., None], axis=-1)
    of_target = jnp.where(jnp.isnan(of_target), -jnp.inf, of_target)
    return jnp.sum(values > of_target, axis=-1) < k


@operation
def view_as_complex(x: ArrayLike) -> jax.Array:
    """Convert real and imaginary parts (..., 2) to complex numbers (...)."""
    array = as_array(x)
    if array.shape[-1:] != (2,):
        summary = "view_as_complex needs real and imaginary parts: a last dim of size 2"
        raise ModelError(summary, given=f"shape {array.shape}", fix="ops.stack([real, imaginary], axis=-1)")
    real, imaginary = (array[..., part].astype(jnp.float32) for part in (0, 1))
    return jax.lax.complex(real, imaginary)


@operation
def view_as_real(x: ArrayLike) -> jax.Array:
    """Return the real and imaginary parts (..., 2) of complex numbers (...)."""
    array = as_array(x)
    return jnp.stack([jnp.real(array), jnp.imag(array)], axis=-1)


_SEGMENTS = """

    Args:
        data: rows.
        segment_ids: the segment of each row; rows with indices outside of 0 to `num_segments - 1` are ignored.
        num_segments: number of segments; required.
        sorted: whether `segment_ids` are in ascending order.
    """


class _Segments(Protocol):
    def __call__(
        self, data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None, sorted: bool = False
    ) -> jax.Array: ...


def _segments(name: str, function: Callable[..., jax.Array], doc: str) -> _Segments:
    def reduced(
        data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None, sorted: bool = False
    ) -> jax.Array:
        rows, ids = as_array(data), as_array(segment_ids)
        if num_segments is None or ids.ndim != 1 or len(ids) != len(rows):
            summary = f"{name} needs an index for each row, and `num_segments`, the size of the result"
            given = f"data of shape {rows.shape}, segment_ids of shape {ids.shape}, num_segments={num_segments}"
            raise ModelError(summary, given=given, fix=f"{name}(data, segment_ids, num_segments=3)")
        return function(rows, ids, num_segments, indices_are_sorted=sorted)

    return operation(named(reduced, name, doc + _SEGMENTS))


segment_sum = _segments("segment_sum", jax.ops.segment_sum, "Sum the rows of each segment: (num_segments, ...).")
segment_max = _segments("segment_max", jax.ops.segment_max, "Return the largest values of the rows of each segment.")
segment_min = _segments("segment_min", jax.ops.segment_min, "Return the smallest values of the rows of each segment.")
segment_prod = _segments("segment_prod", jax.ops.segment_prod, "Multiply the rows of each segment.")

__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
