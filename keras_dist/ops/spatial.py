"""Convolutions and pooling over one, two or three spatial dims, as operations."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from keras_dist._support.arguments import check_option, check_sizes
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops import channel_order, convolving, pooling
from keras_dist.ops.operation import as_array, floating, named, names_in, operation
from keras_dist.ops.spatial_dims import SpatialDims

Sizes: TypeAlias = int | Sequence[int]


def _dims(name: str, inputs: jax.Array, data_format: str | None) -> SpatialDims:
    if not 3 <= inputs.ndim <= 5:
        given = f"inputs of shape {inputs.shape}"
        fix = "ops.expand_dims(inputs, 0) for a single example"
        raise ModelError(f"{name} works on a batch, channels, and one to three spatial dims", given=given, fix=fix)
    return SpatialDims(inputs.ndim - 2, channel_order.is_last(data_format, name))


def _padding(value: str) -> str:
    return check_option("padding", value, ("valid", "same"))


def _convolved(
    name: str,
    dims: SpatialDims,
    inputs: jax.Array,
    kernel: jax.Array,
    strides: Sizes,
    padding: str,
    dilation_rate: Sizes,
) -> jax.Array:
    channels, of_group = inputs.shape[dims.channel_axis], kernel.shape[-2]
    if kernel.ndim != inputs.ndim or channels % of_group:
        raise _misfit(name, inputs, kernel, "(*window, channels, filters), whose channels divide those of the inputs")
    steps = check_sizes("strides", strides, dims.rank, name)
    rates = check_sizes("dilation_rate", dilation_rate, dims.rank, name)
    outputs = convolving.convolve(dims, inputs, kernel, steps, _padding(padding), rates, channels // of_group)
    if outputs.size == 0 and inputs.size > 0:
        raise _misfit(name, inputs, kernel, 'a window that fits into the inputs, or padding="same"')
    return outputs


def _misfit(name: str, inputs: jax.Array, kernel: jax.Array, expected: str) -> ModelError:
    given = f"inputs of shape {inputs.shape}, kernel of shape {kernel.shape}"
    fix = 'see data_format: "channels_last" is the default'
    return ModelError(f"{name}: the kernel does not fit the inputs", given=given, expected=expected, fix=fix)


def _of_each_channel(name: str, dims: SpatialDims, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """The kernel (window, channels, outputs of a channel) as one of groups of one channel."""
    if kernel.shape[-2] != inputs.shape[dims.channel_axis]:
        raise _misfit(name, inputs, kernel, "(*window, channels, outputs of a channel)")
    return convolving.of_each_channel(kernel)


def _convolution(
    name: str, kernel_of: Callable[[str, SpatialDims, jax.Array, jax.Array], jax.Array], doc: str
) -> Callable[..., jax.Array]:
    """The convolution with what `kernel_of` makes of a kernel and the inputs."""

    def applied(
        inputs: ArrayLike,
        kernel: ArrayLike,
        strides: Sizes = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Sizes = 1,
    ) -> jax.Array:
        array = as_array(inputs)
        dims = _dims(name, array, data_format)
        weights = kernel_of(name, dims, array, as_array(kernel))
        return _convolved(name, dims, array, weights, strides, padding, dilation_rate)

    return operation(named(applied, name, doc))


conv = _convolution(
    "conv",
    lambda name, dims, inputs, kernel: kernel,
    """Return the convolution of `inputs` with `kernel`, in the element type of the kernel.

    Args:
        inputs: (batch, spatial dims, channels).
        kernel: (*window, channels, filters); where it has fewer channels than the inputs, these are convolved in
            groups.
        strides: the step of the window in each spatial dim, or in all of them.
        padding: `"valid"`, or `"same"` for windows that reach over the borders.
        data_format: `"channels_last"`, the default, or `"channels_first"` for inputs (batch, channels, spatial dims).
        dilation_rate: how far apart the elements of the kernel are.

    Raises:
        ModelError: the kernel does not fit, or nothing is left of the inputs.
    """,
)
depthwise_conv = _convolution(
    "depthwise_conv",
    _of_each_channel,
    """Return the convolution of each channel with a kernel of its own, (*window, channels, outputs of a channel).

    The other arguments are those of `conv`.
    """,
)


@operation
def separable_conv(
    inputs: ArrayLike,
    depthwise_kernel: ArrayLike,
    pointwise_kernel: ArrayLike,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> jax.Array:
    """Return `depthwise_conv` of the inputs, the channels of which `pointwise_kernel` then mixes.

    Args:
        inputs: (batch, spatial dims, channels).
        depthwise_kernel: (*window, channels, outputs of a channel).
        pointwise_kernel: (1, ..., channels * outputs of a channel, filters).
        strides: as of `conv`, of the first convolution.
        padding: as of `conv`, of the first convolution.
        data_format: as of `conv`.
        dilation_rate: as of `conv`.
    """
    array = as_array(inputs)
    dims = _dims("separable_conv", array, data_format)
    kernel = _of_each_channel("separable_conv", dims, array, as_array(depthwise_kernel))
    convolved = _convolved("separable_conv", dims, array, kernel, strides, padding, dilation_rate)
    return _convolved("separable_conv", dims, convolved, as_array(pointwise_kernel), 1, "valid", dilation_rate)


@operation
def conv_transpose(
    inputs: ArrayLike,
    kernel: ArrayLike,
    strides: Sizes = 1,
    padding: str = "valid",
    output_padding: Sizes | None = None,
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> jax.Array:
    """Return the transposed convolution: the gradient of a convolution with respect to its inputs.

    Args:
        inputs: (batch, spatial dims, channels).
        kernel: (*window, filters, channels).
        strides: how far apart the inputs lie.
        padding: as of `conv`.
        output_padding: steps that are added at one end of each dim; None for as many as `padding` says.
        data_format: as of `conv`.
        dilation_rate: as of `conv`.
    """
    array, weights = as_array(inputs), as_array(kernel)
    dims = _dims("conv_transpose", array, data_format)
    if weights.ndim != array.ndim or weights.shape[-1] != array.shape[dims.channel_axis]:
        raise _misfit("conv_transpose", array, weights, "(*window, filters, channels)")
    steps = check_sizes("strides", strides, dims.rank, "conv_transpose")
    rates = check_sizes("dilation_rate", dilation_rate, dims.rank, "conv_transpose")
    if output_padding is not None:
        output_padding = check_sizes("output_padding", output_padding, dims.rank, "conv_transpose", least=0)
    return convolving.convolve_transposed(dims, array, weights, steps, _padding(padding), output_padding, rates)


def _pooling(name: str, pool: Callable[..., jax.Array], doc: str) -> Callable[..., jax.Array]:
    """The operation `pool`, whose arguments are checked."""

    def applied(
        inputs: ArrayLike,
        pool_size: Sizes,
        strides: Sizes | None = None,
        padding: str = "valid",
        data_format: str | None = None,
    ) -> jax.Array:
        array = as_array(inputs)
        dims = _dims(name, array, data_format)
        sizes = check_sizes("pool_size", pool_size, dims.rank, name)
        steps = sizes if strides is None else check_sizes("strides", strides, dims.rank, name)
        return pool(dims, array, sizes, steps, _padding(padding))

    return operation(named(applied, name, doc))


max_pool = _pooling(
    "max_pool",
    pooling.largest,
    """Return the largest value of each window of each channel.

    Args:
        inputs: (batch, spatial dims, channels).
        pool_size: the size of the window in each spatial dim, or in all of them.
        strides: its step; None for `pool_size`.
        padding: `"valid"`, or `"same"` for windows that reach over the borders.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """,
)
average_pool = _pooling(
    "average_pool",
    lambda dims, inputs, *options: pooling.means(dims, floating(inputs), *options),
    """Return the mean of each window of each channel; steps beyond the borders do not count.

    The arguments are those of `max_pool`.
    """,
)


def _adaptive_pooling(name: str, reduction: Any, doc: str) -> Callable[..., jax.Array]:
    def applied(inputs: ArrayLike, output_size: Sizes, data_format: str | None = None) -> jax.Array:
        array = as_array(inputs)
        dims = _dims(name, array, data_format)
        return pooling.adaptive(dims, array, check_sizes("output_size", output_size, dims.rank, name), reduction)

    return operation(named(applied, name, doc))


adaptive_max_pool = _adaptive_pooling(
    "adaptive_max_pool",
    pooling.largest_of_steps,
    """Return the largest values of `output_size` windows of each channel, whatever its size.

    Args:
        inputs: (batch, spatial dims, channels).
        output_size: the number of windows in each spatial dim, or in all of them.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """,
)
adaptive_average_pool = _adaptive_pooling(
    "adaptive_average_pool",
    pooling.mean_of_steps,
    """Return the means of `output_size` windows of each channel; arguments as of `adaptive_max_pool`.""",
)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
