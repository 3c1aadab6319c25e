"""Pooling over one, two or three spatial dims, on `jax.lax`: arithmetic of layers and of operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.ops.spatial_dims import SpatialDims


def largest(
    dims: SpatialDims, inputs: jax.Array, sizes: Sequence[int], strides: Sequence[int], padding: str
) -> jax.Array:
    """Return the largest value of each window of each channel."""
    lowest = -jnp.inf if jnp.issubdtype(inputs.dtype, jnp.floating) else jnp.iinfo(inputs.dtype).min
    window, steps = dims.for_all(sizes, 1), dims.for_all(strides, 1)
    return jax.lax.reduce_window(inputs, lowest, jax.lax.max, window, steps, padding.upper())


def means(
    dims: SpatialDims, inputs: jax.Array, sizes: Sequence[int], strides: Sequence[int], padding: str
) -> jax.Array:
    """Return the mean of each window of each channel of floats; steps beyond the borders do not count."""
    window, steps = dims.for_all(sizes, 1), dims.for_all(strides, 1)

    def sums(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, steps, padding.upper())

    if padding == "valid":
        return sums(inputs) / math.prod(sizes)
    return sums(inputs) / sums(jnp.ones(dims.for_all([inputs.shape[axis] for axis in dims.axes], 1), inputs.dtype))


def adaptive(
    dims: SpatialDims,
    inputs: jax.Array,
    counts: Sequence[int],
    reduction: Callable[[jax.Array, np.ndarray, int], jax.Array],
) -> jax.Array:
    """Reduce spatial dims to as many windows as `counts` says by `reduction`, one of the functions below."""
    for axis, count in zip(dims.axes, counts, strict=True):
        size = inputs.shape[axis]
        windows = np.arange(count)
        starts, ends = windows * size // count, -(-(windows + 1) * size // count)
        steps = starts[:, None] + np.arange(max(ends - starts))
        values = jnp.take(inputs, np.minimum(steps, ends[:, None] - 1), axis=axis, mode="clip")
        inside = np.expand_dims(steps < ends[:, None], tuple(range(2, values.ndim - axis)))
        inputs = reduction(values, inside, axis + 1)
    return inputs


def largest_of_steps(values: jax.Array, inside: np.ndarray, axis: int) -> jax.Array:
    """Return the largest step of each window along `axis`; shorter windows repeat their last step."""
    return jnp.max(values, axis)


def mean_of_steps(values: jax.Array, inside: np.ndarray, axis: int) -> jax.Array:
    """Return the mean of the steps of each window along `axis` that are `inside`."""
    return jnp.mean(values, axis, where=inside)
