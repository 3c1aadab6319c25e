"""Sums, means, extremes and their places, over dims or along them."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.numpy_arguments import Axes
from keras_dist.ops.operation import as_array, like, names_in, operation

_ARGUMENTS = """

    Args:
        x: an array.
        axis: the dims that are reduced; None for all.
        keepdims: whether the reduced dims stay, with size 1.
    """
_ALONG = """

    Args:
        x: an array.
        axis: the dim along which it goes; None to flatten the array first.
        dtype: element type of the result; by default that of `x`, `int32` for bools.
    """


class _Reduction(Protocol):
    def __call__(self, x: ArrayLike, axis: Any = None, keepdims: bool = False) -> jax.Array: ...


class _Running(Protocol):
    def __call__(self, x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> jax.Array: ...


def _reduction(name: str, function: Callable[..., Any], doc: str) -> _Reduction:
    """Return the operation `name(x, axis=None, keepdims=False)`."""

    def reduced(x: Any, axis: Axes = None, keepdims: bool = False) -> jax.Array:
        return function(x, axis=arguments.axes(axis), keepdims=keepdims)

    return like(name, reduced, doc + _ARGUMENTS)


def _running(name: str, function: Callable[..., Any], doc: str) -> _Running:
    """Return the operation `name(x, axis=None, dtype=None)`."""

    def accumulated(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> jax.Array:
        return function(x, axis=axis, dtype=arguments.element_type(dtype))

    return like(name, accumulated, doc + _ALONG)


all = _reduction("all", jnp.all, "Whether all elements are true, or not 0.")
amax = _reduction("amax", jnp.amax, "The largest elements.")
amin = _reduction("amin", jnp.amin, "The smallest elements.")
any = _reduction("any", jnp.any, "Whether any element is true, or not 0.")
argmax = _reduction("argmax", jnp.argmax, "The indices of the largest elements, the first where several are.")
argmin = _reduction("argmin", jnp.argmin, "The indices of the smallest elements, the first where several are.")
mean = _reduction("mean", jnp.mean, "The means; of integers and bools as floats.")
median = _reduction("median", jnp.median, "The medians; of integers and bools as floats.")
nanargmax = _reduction("nanargmax", jnp.nanargmax, "`argmax` without NaNs; -1 where there is nothing else.")
nanargmin = _reduction("nanargmin", jnp.nanargmin, "`argmin` without NaNs; -1 where there is nothing else.")
nanmax = _reduction("nanmax", jnp.nanmax, "`max` without NaNs.")
nanmean = _reduction("nanmean", jnp.nanmean, "`mean` without NaNs.")
nanmedian = _reduction("nanmedian", jnp.nanmedian, "`median` without NaNs.")
nanmin = _reduction("nanmin", jnp.nanmin, "`min` without NaNs.")
nanprod = _reduction("nanprod", jnp.nanprod, "`prod` without NaNs.")
nanstd = _reduction("nanstd", jnp.nanstd, "`std` without NaNs.")
nansum = _reduction("nansum", jnp.nansum, "`sum` without NaNs.")
nanvar = _reduction("nanvar", jnp.nanvar, "`var` without NaNs.")
ptp = _reduction("ptp", jnp.ptp, "The largest elements less the smallest.")
std = _reduction("std", jnp.std, "The standard deviations: roots of `var`.")
sum = _reduction("sum", jnp.sum, "The sums; of bools and integers in at least 32 bits.")
var = _reduction("var", jnp.var, "The means of squared distances from the mean.")

cumprod = _running("cumprod", jnp.cumprod, "The products of all elements up to each.")
cumsum = _running("cumsum", jnp.cumsum, "The sums of all elements up to each.")
nancumprod = _running("nancumprod", jnp.nancumprod, "`cumprod` with 1 in place of NaN.")
nancumsum = _running("nancumsum", jnp.nancumsum, "`cumsum` with 0 in place of NaN.")


@operation
def max(x: ArrayLike, axis: Axes = None, keepdims: bool = False, initial: ArrayLike | None = None) -> jax.Array:
    """Return the largest elements.

    Args:
        x: an array.
        axis: the dims that are reduced; None for all.
        keepdims: whether the reduced dims stay, with size 1.
        initial: the least that is returned; needed where there are no elements.
    """
    return jnp.max(as_array(x), axis=arguments.axes(axis), keepdims=keepdims, initial=initial)


@operation
def min(x: ArrayLike, axis: Axes = None, keepdims: bool = False, initial: ArrayLike | None = None) -> jax.Array:
    """Return the smallest elements.

    Args:
        x: an array.
        axis: the dims that are reduced; None for all.
        keepdims: whether the reduced dims stay, with size 1.
        initial: the most that is returned; needed where there are no elements.
    """
    return jnp.min(as_array(x), axis=arguments.axes(axis), keepdims=keepdims, initial=initial)


@operation
def prod(x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> jax.Array:
    """Return the products.

    Args:
        x: an array.
        axis: the dims that are reduced; None for all.
        keepdims: whether the reduced dims stay, with size 1.
        dtype: element type of the result; by default that of `x`, in at least 32 bits for bools and integers.
    """
    dtype = arguments.element_type(dtype)
    return jnp.prod(as_array(x), axis=arguments.axes(axis), keepdims=keepdims, dtype=dtype)


@operation
def average(x: ArrayLike, axis: Axes = None, weights: ArrayLike | None = None) -> jax.Array:
    """Return means, or weighted means, as floats.

    Args:
        x: an array.
        axis: the dims that are reduced; None for all.
        weights: an array like `x`, or a row along the one axis; None for equal ones.
    """
    weights = None if weights is None else as_array(weights)
    return jnp.average(as_array(x), axis=arguments.axes(axis), weights=weights)


@operation
def count_nonzero(x: ArrayLike, axis: Axes = None) -> jax.Array:
    """Return the numbers of elements that are true, or not 0.

    Args:
        x: an array.
        axis: the dims that are reduced; None for all.
    """
    return jnp.count_nonzero(as_array(x), axis=arguments.axes(axis)).astype("int32")


@operation
def diff(a: ArrayLike, n: int = 1, axis: int = -1) -> jax.Array:
    """Return the differences of neighbouring elements.

    Args:
        a: an array.
        n: how many times.
        axis: the dim along which it goes.
    """
    return jnp.diff(as_array(a), n=n, axis=axis)


@operation
def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> jax.Array:
    """Return the integrals by the trapezoidal rule.

    Args:
        y: values of the functions.
        x: the places of the values; None for equal distances.
        dx: these distances.
        axis: the dim along which it goes.
    """
    return jnp.trapezoid(as_array(y), None if x is None else as_array(x), dx=as_array(dx), axis=axis)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
