"""Quantiles, counts in bins, and correlations."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import ArrayLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.numpy_arguments import Axes
from keras_dist.ops.operation import as_array, like, names_in, operation, unary


class _Quantile(Protocol):
    def __call__(
        self, x: ArrayLike, q: ArrayLike, axis: Axes = None, method: str = "linear", keepdims: bool = False
    ) -> jax.Array: ...


def _quantile(name: str, function: Callable[..., Any], doc: str) -> _Quantile:
    """Return the operation `name(x, q, axis=None, method="linear", keepdims=False)`."""

    def computed(x: Any, q: Any, axis: Axes = None, method: str = "linear", keepdims: bool = False) -> jax.Array:
        return function(x, as_array(q), axis=arguments.axes(axis), method=method, keepdims=keepdims)

    return like(name, computed, doc + _ARGUMENTS)


_ARGUMENTS = """

    Args:
        x: an array.
        q: a number, or a row of them, which becomes the first dim.
        axis: the dims that are reduced; None for all.
        method: what lies between two elements: "linear", "lower", "higher", "midpoint" or "nearest".
        keepdims: whether the dims stay, with size 1.
    """

corrcoef = unary("corrcoef", jnp.corrcoef, "The correlations `(n, n)` of `n` rows of observations.")
nanpercentile = _quantile("nanpercentile", jnp.nanpercentile, "`percentile` without NaNs.")
nanquantile = _quantile("nanquantile", jnp.nanquantile, "`quantile` without NaNs.")
percentile = _quantile("percentile", jnp.percentile, "The `q`-th percentiles, `q` from 0 to 100.")
quantile = _quantile("quantile", jnp.quantile, "The `q`-quantiles, `q` from 0 to 1.")


@operation
def bincount(x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, sparse: bool = False) -> jax.Array:
    """Return how often each integer from 0 on occurs; in each row of a matrix.

    Args:
        x: integers from 0 on, of one dim or two.
        weights: what each counts, of the same shape; None for 1.
        minlength: of the result.
        sparse: only False.

    Raises:
        ModelError: `x` has no values: the largest one would be the shape of the result; or `sparse` is set.
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
    """Return the cross-correlation of two arrays of one dim.

    Args:
        x1: a row.
        x2: another.
        mode: "valid" for places where the shorter one lies within the longer one, "same" for as many as that has,
            "full" for all.
    """
    return jnp.correlate(as_array(x1), as_array(x2), mode)


@operation
def digitize(x: ArrayLike, bins: ArrayLike) -> jax.Array:
    """Return the number of the bin of each element: how many of the limits are at most as large.

    Args:
        x: an array.
        bins: the limits of the bins, ascending.
    """
    return jnp.digitize(as_array(x), as_array(bins))


@operation
def histogram(x: ArrayLike, bins: int = 10, range: tuple[float, float] | None = None) -> tuple[jax.Array, jax.Array]:
    """Return how many elements are in each of several bins of equal width, and the `bins + 1` limits of these.

    Args:
        x: a row.
        bins: their number.
        range: the lowest and the highest limit; None for the smallest and the largest element.

    Raises:
        ModelError: `x` has another number of dims, `bins` is no number, or `range` no two ascending ones.
    """
    x = as_array(x)
    if x.ndim > 1:
        raise argument_error("x", x, "a row: an array of one dim")
    if not is_int(bins, 0):
        raise argument_error("bins", bins, "an integer from 0 on", example=10)
    if range and (not isinstance(range, tuple) or len(range) != 2 or range[1] < range[0]):
        raise argument_error("range", range, "a tuple of two ascending numbers", example=(0.0, 1.0))
    return jnp.histogram(x, bins=bins, range=range or None)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
