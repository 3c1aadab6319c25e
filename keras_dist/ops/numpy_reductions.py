"""Reductions, running totals, statistics and products of `jax.numpy`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.numpy_arguments import Axes
from keras_dist.ops.operation import as_array, binary, like, names_in, operation, unary

_ARGUMENTS = """

    Args:
        x: an array.
        axis: the dims to reduce; None for all.
        keepdims: whether reduced dims stay with size 1.
    """
_ALONG = """

    Args:
        x: an array.
        axis: the dim; None to flatten the array first.
        dtype: element type of the result; None for the type of `x`, `int32` for bools.
    """
_QUANTILE_ARGUMENTS = """

    Args:
        x: an array.
        q: a number, or a vector of them, which becomes the first dim.
        axis: the dims to reduce; None for all.
        method: the value between two elements: `"linear"`, `"lower"`, `"higher"`, `"midpoint"` or `"nearest"`.
        keepdims: whether reduced dims stay with size 1.
    """


class _Reduction(Protocol):
    def __call__(self, x: ArrayLike, axis: Any = None, keepdims: bool = False) -> jax.Array: ...


class _Running(Protocol):
    def __call__(self, x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> jax.Array: ...


class _Quantile(Protocol):
    def __call__(
        self, x: ArrayLike, q: ArrayLike, axis: Axes = None, method: str = "linear", keepdims: bool = False
    ) -> jax.Array: ...


def _reduction(name: str, function: Callable[..., Any], doc: str) -> _Reduction:
    def reduced(x: Any, axis: Axes = None, keepdims: bool = False) -> jax.Array:
        return function(x, axis=arguments.axes(axis), keepdims=keepdims)

    return like(name, reduced, doc + _ARGUMENTS)


def _running(name: str, function: Callable[..., Any], doc: str) -> _Running:
    def accumulated(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> jax.Array:
        return function(x, axis=axis, dtype=arguments.element_type(dtype))

    return like(name, accumulated, doc + _ALONG)


def _quantile(name: str, function: Callable[..., Any], doc: str) -> _Quantile:
    def computed(x: Any, q: Any, axis: Axes = None, method: str = "linear", keepdims: bool = False) -> jax.Array:
        return function(x, as_array(q), axis=arguments.axes(axis), method=method, keepdims=keepdims)

    return like(name, computed, doc + _QUANTILE_ARGUMENTS)


all = _reduction("all", jnp.all, "Return whether all elements are true, or not 0.")
amax = _reduction("amax", jnp.amax, "Return the largest elements.")
amin = _reduction("amin", jnp.amin, "Return the smallest elements.")
any = _reduction("any", jnp.any, "Return whether any element is true, or not 0.")
argmax = _reduction("argmax", jnp.argmax, "Return the indices of the largest elements, the first of equal ones.")
argmin = _reduction("argmin", jnp.argmin, "Return the indices of the smallest elements, the first of equal ones.")
mean = _reduction("mean", jnp.mean, "Return the means; of integers and bools as floats.")
median = _reduction("median", jnp.median, "Return the medians; of integers and bools as floats.")
nanargmax = _reduction("nanargmax", jnp.nanargmax, "Return `argmax` ignoring NaN; -1 where all are NaN.")
nanargmin = _reduction("nanargmin", jnp.nanargmin, "Return `argmin` ignoring NaN; -1 where all are NaN.")
nanmax = _reduction("nanmax", jnp.nanmax, "Return the largest elements, ignoring NaN.")
nanmean = _reduction("nanmean", jnp.nanmean, "Return the means, ignoring NaN.")
nanmedian = _reduction("nanmedian", jnp.nanmedian, "Return the medians, ignoring NaN.")
nanmin = _reduction("nanmin", jnp.nanmin, "Return the smallest elements, ignoring NaN.")
nanprod = _reduction("nanprod", jnp.nanprod, "Return the products, ignoring NaN.")
nanstd = _reduction("nanstd", jnp.nanstd, "Return the standard deviations, ignoring NaN.")
nansum = _reduction("nansum", jnp.nansum, "Return the sums, ignoring NaN.")
nanvar = _reduction("nanvar", jnp.nanvar, "Return the variances, ignoring NaN.")
ptp = _reduction("ptp", jnp.ptp, "Return the ranges: largest minus smallest elements.")
std = _reduction("std", jnp.std, "Return the standard deviations.")
sum = _reduction("sum", jnp.sum, "Return the sums; of bools and integers in at least 32 bits.")
var = _reduction("var", jnp.var, "Return the variances: means of squared distances from the mean.")

cumprod = _running("cumprod", jnp.cumprod, "Return the cumulative products.")
cumsum = _running("cumsum", jnp.cumsum, "Return the cumulative sums.")
nancumprod = _running("nancumprod", jnp.nancumprod, "Return the cumulative products, with 1 in place of NaN.")
nancumsum = _running("nancumsum", jnp.nancumsum, "Return the cumulative sums, with 0 in place of NaN.")

nanpercentile = _quantile("nanpercentile", jnp.nanpercentile, "Return the `q`-th percentiles, ignoring NaN.")
nanquantile = _quantile("nanquantile", jnp.nanquantile, "Return the `q`-quantiles, ignoring NaN.")
percentile = _quantile("percentile", jnp.percentile, "Return the `q`-th percentiles, `q` from 0 to 100.")
quantile = _quantile("quantile", jnp.quantile, "Return the `q`-quantiles, `q` from 0 to 1.")


@operation
def max(x: ArrayLike, axis: Axes = None, keepdims: bool = False, initial: ArrayLike | None = None) -> jax.Array:
    """Return the largest elements.

    Args:
        x: an array.
        axis: the dims to reduce; None for all.
        keepdims: whether reduced dims stay with size 1.
        initial: the smallest result; required for empty arrays.
    """
    return jnp.max(as_array(x), axis=arguments.axes(axis), keepdims=keepdims, initial=initial)


@operation
def min(x: ArrayLike, axis: Axes = None, keepdims: bool = False, initial: ArrayLike | None = None) -> jax.Array:
    """Return the smallest elements, at most `initial`; for the arguments see `max`."""
    return jnp.min(as_array(x), axis=arguments.axes(axis), keepdims=keepdims, initial=initial)


@operation
def prod(x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> jax.Array:
    """Return the products.

    Args:
        x, axis, keepdims: as in `max`.
        dtype: element type of the result; None for the type of `x`, with at least 32 bits for bools and integers.
    """
    dtype = arguments.element_type(dtype)
    return jnp.prod(as_array(x), axis=arguments.axes(axis), keepdims=keepdims, dtype=dtype)


@operation
def average(x: ArrayLike, axis: Axes = None, weights: ArrayLike | None = None) -> jax.Array:
    """Return the means over `axis` as floats, weighted by `weights` of the shape of `x` or of the one dim `axis`."""
    weights = None if weights is None else as_array(weights)
    return jnp.average(as_array(x), axis=arguments.axes(axis), weights=weights)


@operation
def count_nonzero(x: ArrayLike, axis: Axes = None) -> jax.Array:
    """Return the number of elements over `axis` that are true, or not 0; None for all dims."""
    return jnp.count_nonzero(as_array(x), axis=arguments.axes(axis)).astype("int32")


@operation
def diff(a: ArrayLike, n: int = 1, axis: int = -1) -> jax.Array:
    """Return the `n`-th differences of neighbouring elements along `axis`."""
    return jnp.diff(as_array(a), n=n, axis=axis)


@operation
def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> jax.Array:
    """Integrate `y` along `axis` by the trapezoidal rule; samples are at `x`, or `dx` apart if `x` is None."""
    return jnp.trapezoid(as_array(y), None if x is None else as_array(x), dx=as_array(dx), axis=axis)


@operation
def bincount(x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, sparse: bool = False) -> jax.Array:
    """Count the occurrences of each non-negative integer; in a matrix, for each row.

    Args:
        x: integers from 0 on, with one or two dims.
        weights: weight of each element, of the shape of `x`; None for 1.
        minlength: the smallest length of the result.
        sparse: must be False.

    Raises:
        ModelError: `x` is symbolic or traced, so that the shape of the result is unknown; or `sparse` is set.
    """
    if sparse:
        raise argument_error("sparse", sparse, "False: there are no sparse arrays", example=False)
    fix = "ops.sum(ops.one_hot(x, length), axis=0) is of a shape that is known"
    array: jax.Array = arguments.known(x, "bincount", fix)
    weights = None if weights is None else as_array(weights)
    if array.ndim != 2:
        return jnp.bincount(array, weights, minlength)
    length = 1 + int(array.max(initial=minlength - 1))
    rows = zip(array, [None] * len(array) if weights is None else weights, strict=True)
    return jnp.stack([jnp.bincount(row, weight, length) for row, weight in rows])


@operation
def correlate(x1: ArrayLike, x2: ArrayLike, mode: str = "valid") -> jax.Array:
    """Return the cross-correlation of two vectors; see `jax.numpy.correlate`."""
    return jnp.correlate(as_array(x1), as_array(x2), mode)


@operation
def digitize(x: ArrayLike, bins: ArrayLike) -> jax.Array:
    """Return the bin index of each element: the number of limits in the ascending vector `bins` that are not larger."""
    return jnp.digitize(as_array(x), as_array(bins))


@operation
def histogram(x: ArrayLike, bins: int = 10, range: tuple[float, float] | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the counts of elements in bins of equal width, and the `bins + 1` limits; see `jax.numpy.histogram`.

    Raises:
        ModelError: `x` is not a vector, `bins` is not a count, or `range` is not an ascending pair.
    """
    x = as_array(x)
    if x.ndim > 1:
        raise argument_error("x", x, "a row: an array of one dim")
    if not is_int(bins, 0):
        raise argument_error("bins", bins, "an integer from 0 on", example=10)
    if range and (not isinstance(range, tuple) or len(range) != 2 or range[1] < range[0]):
        raise argument_error("range", range, "a tuple of two ascending numbers", example=(0.0, 1.0))
    return jnp.histogram(x, bins=bins, range=range or None)


def _sum_of(*arrays: jax.Array) -> Any:
    """Return the element type of sums of products: int32 for int8, as hardware computes them; None for JAX's own."""
    return None if {array.dtype.name for array in arrays} - {"int8"} else "int32"


def _matmul(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return jnp.matmul(x1, x2, preferred_element_type=_sum_of(x1, x2))


def _slogdet(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    sign, logabsdet = jnp.linalg.slogdet(x)
    return sign, logabsdet


corrcoef = unary("corrcoef", jnp.corrcoef, "Return the correlation matrix (n, n) of n rows of observations.")
dot = binary("dot", jnp.dot, "Return the dot products of the rows of `x1` and the columns of `x2`.")
inner = binary("inner", jnp.inner, "Return the dot products of both arrays along their last dims.")
kron = binary("kron", jnp.kron, "Return the Kronecker product: `x2` times each element of `x1`.")
matmul = binary("matmul", _matmul, "Multiply matrices (..., m, n) and (..., n, p); int8 gives int32.")
outer = binary("outer", jnp.outer, "Return the matrix of products of all elements of `x1` and `x2`.")
slogdet = unary("slogdet", _slogdet, "Return sign and logarithm of the absolute value of each determinant.")
vdot = binary("vdot", jnp.vdot, "Return the dot product of both arrays, flattened; complex `x1` is conjugated.")


@operation
def cross(
    x1: ArrayLike, x2: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> jax.Array:
    """Return the cross products of vectors of two or three elements; for the arguments see `jax.numpy.cross`."""
    return jnp.cross(as_array(x1), as_array(x2), axisa, axisb, axisc, axis)


@operation
def einsum(subscripts: str, *operands: ArrayLike, **kwargs: Any) -> jax.Array:
    """Return the sums of products that subscripts such as `"ij,jk->ik"` define; see `jax.numpy.einsum`."""
    arrays = [as_array(operand) for operand in operands]
    return jnp.einsum(subscripts, *arrays, **{"preferred_element_type": _sum_of(*arrays), **kwargs})


@operation
def tensordot(x1: ArrayLike, x2: ArrayLike, axes: int | Sequence[Any] = 2) -> jax.Array:
    """Sum products over the last `axes` dims of `x1` and the first of `x2`, or over two lists of dims."""
    return jnp.tensordot(as_array(x1), as_array(x2), axes)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
