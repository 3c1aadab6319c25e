"""Moments and normalization: arithmetic, which layers call, and operations."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, check_int
from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import epsilon as default_epsilon
from keras_dist.errors import ModelError
from keras_dist.ops import numpy_arguments
from keras_dist.ops.operation import as_array, dims_of, operation

__all__ = ["batch_normalization", "layer_normalization", "moments", "normalize", "rms_normalization"]


def wide(inputs: jax.Array) -> jax.Array:
    """Cast inputs to at least float32: squares in half precision overflow."""
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def standardized(
    values: jax.Array, axes: Sequence[int], epsilon: float, gamma: jax.Array | None, beta: jax.Array | None
) -> jax.Array:
    """Return `(values - mean) / sqrt(variance + epsilon) * gamma + beta` with moments over the dims `axes`."""
    factor = jax.lax.rsqrt(jnp.var(values, axes, keepdims=True) + epsilon)
    mean = jnp.mean(values, axes, keepdims=True)
    if gamma is not None:
        factor = factor * gamma
    summand = -mean * factor
    if beta is not None:
        summand = summand + beta
    return values * factor + summand


def standardized_by(
    values: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | float,
    beta: jax.Array | float,
    axis: int,
    epsilon: float,
) -> jax.Array:
    """Return `(values - mean) / sqrt(variance + epsilon) * gamma + beta` with vectors along the dim `axis`."""
    factor = jax.lax.rsqrt(variance + epsilon) * gamma
    shape = [-1 if dim == axis else 1 for dim in range(values.ndim)]
    return values * factor.reshape(shape) + (beta - mean * factor).reshape(shape)


def divided_by_rms(
    values: jax.Array, axes: int | Sequence[int] | None, epsilon: float, scale: jax.Array | None = None
) -> jax.Array:
    """Return `values / sqrt(mean(values**2) + epsilon) * scale`, the mean over the dims `axes`."""
    normalized = values * jax.lax.rsqrt(jnp.mean(jnp.square(values), axes, keepdims=True) + epsilon)
    return normalized if scale is None else normalized * scale


def divided_by_norm(values: jax.Array, axes: int | Sequence[int] | None, largest_factor: float) -> jax.Array:
    """Return `values / sqrt(sum(values**2, axes))`; the factor of values is at most `largest_factor`."""
    squares = jnp.sum(jnp.square(values), axes, keepdims=True)
    squares = squares.astype(jnp.result_type(squares, 0.0))
    return values * jnp.minimum(jax.lax.rsqrt(squares), largest_factor)


@operation
def moments(
    x: ArrayLike, axes: int | Sequence[int], keepdims: bool = False, synchronized: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Return the mean and the variance over `axes`.

    Args:
        x: an array.
        axes: the dims.
        keepdims: whether reduced dims stay with size 1.
        synchronized: must be False: moments of sharded arrays are global.

    Raises:
        ModelError: `synchronized` is set, or the array does not have these dims.
    """
    if synchronized:
        raise argument_error("synchronized", True, "False: arrays are global, and so are their moments", example=False)
    array = as_array(x)
    values: Any = wide(array) if array.dtype in (jnp.float16, jnp.bfloat16) else array
    dims: Any = dims_of(array, axes, "axes") if isinstance(axes, int) or axes else axes
    found = jnp.mean(values, dims, keepdims=keepdims), jnp.var(values, dims, keepdims=keepdims)
    if values is array:
        return found
    limit = jnp.finfo(jnp.float16).max
    mean, variance = (jnp.clip(value, -limit, limit).astype(array.dtype) for value in found)
    return mean, variance


@operation
def batch_normalization(
    x: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    axis: int,
    offset: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    epsilon: float = 1e-3,
) -> jax.Array:
    """Return `(x - mean) / sqrt(variance + epsilon) * scale + offset`.

    Args:
        x: an array.
        mean: (channels,).
        variance: (channels,).
        axis: the dim of the channels.
        offset: (channels,); None for 0.
        scale: (channels,); None for 1.
        epsilon: added to the variance.

    Raises:
        ModelError: the array does not have this dim, or an argument has another shape.
    """
    array = as_array(x)
    (dim,) = dims_of(array, axis)

    def of_channels(argument: str, value: ArrayLike) -> jax.Array:
        found = as_array(value)
        if found.size not in (1, array.shape[dim]):
            summary = f"batch_normalization: `{argument}` must have shape ({array.shape[dim]},), one per channel"
            given = f"{argument} of shape {found.shape} for an input of shape {array.shape}, axis={axis}"
            raise ModelError(summary, given=given, fix=f"correct {argument}, or axis")
        return found.reshape(-1)

    gamma = 1 if scale is None else of_channels("scale", scale)
    beta = 0 if offset is None else of_channels("offset", offset)
    statistics = of_channels("mean", mean), of_channels("variance", variance)
    return standardized_by(array, *statistics, gamma, beta, dim, epsilon)


@operation
def layer_normalization(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    axis: int | Sequence[int] = -1,
    epsilon: float | None = None,
    **kwargs: Any,
) -> jax.Array:
    """Return `(x - mean) / sqrt(variance + epsilon) * gamma + beta` with moments over `axis`.

    Args:
        x: an array.
        gamma: scale, with the dims `axis`; None for 1.
        beta: offset, with the dims `axis`; None for 0.
        axis: the dim, or dims.
        epsilon: added to the variance; None for `config.epsilon()`.
        **kwargs: `rms_scaling`: whether to neither subtract the mean nor add `beta`.
    """
    array = as_array(x)
    values: Any = wide(array)
    axes = dims_of(values, axis)
    shape = [values.shape[dim] if dim in axes else 1 for dim in range(values.ndim)]

    def of_values(weights: ArrayLike) -> jax.Array:
        found = as_array(weights, values.dtype)
        return found if found.ndim == values.ndim or axes == (values.ndim - 1,) else found.reshape(shape)

    scale = None if gamma is None else of_values(gamma)
    if kwargs.pop("rms_scaling", False):
        factor = jax.lax.rsqrt(jnp.var(values, axes, keepdims=True) + _or_default(epsilon))
        return (values * (factor if scale is None else factor * scale)).astype(array.dtype)
    if kwargs:
        raise TypeError(f"layer_normalization() got an unexpected keyword argument {next(iter(kwargs))!r}")
    offset = None if beta is None else of_values(beta)
    return standardized(values, axes, _or_default(epsilon), scale, offset).astype(array.dtype)


@operation
def rms_normalization(
    x: ArrayLike, scale: ArrayLike | None = None, axis: int | Sequence[int] = -1, epsilon: float | None = None
) -> jax.Array:
    """Return `x / sqrt(mean(x**2, axis) + epsilon) * scale`.

    Args:
        x: an array.
        scale: broadcasts to `x`; None for 1.
        axis: the dim, or dims.
        epsilon: added to the mean square; None for `config.epsilon()`.
    """
    array = as_array(x)
    values: Any = jnp.atleast_1d(wide(array))
    weights = None if scale is None else as_array(scale, values.dtype)
    return divided_by_rms(values, numpy_arguments.axes(axis), _or_default(epsilon), weights).astype(array.dtype)


@operation
def normalize(x: ArrayLike, axis: int | Sequence[int] = -1, order: int = 2, epsilon: float | None = None) -> jax.Array:
    """Divide `x` by its norms over `axis`.

    Args:
        x: an array.
        axis: the dim, or dims.
        order: order of the norm: 1 for the sum of absolute values, 2 for the root of the sum of squares.
        epsilon: the smallest divisor; None for `config.epsilon()`.
    """
    check_int("order", order, 1, layer="normalize", example=2)
    values: Any = jnp.atleast_1d(as_array(x))
    axes = numpy_arguments.axes(axis)
    least = _or_default(epsilon)
    if order == 2:
        return divided_by_norm(values, axes, 1 / least)
    floats = values.astype(jnp.result_type(values, 0.0))
    return values / jnp.maximum(jnp.linalg.norm(floats, order, axes, keepdims=True), least)


def _or_default(epsilon: float | None) -> float:
    return default_epsilon() if epsilon is None else epsilon
