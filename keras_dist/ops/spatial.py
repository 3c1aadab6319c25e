"""Convolutions and pooling over one, two or three spatial dims, for layers and as operations."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_option, check_sizes
from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError
from keras_dist.ops.operation import as_array, floating, named, operation

__all__ = ["adaptive_average_pool", "adaptive_max_pool", "average_pool", "conv", "conv_transpose", "depthwise_conv"]
__all__ += ["max_pool", "separable_conv"]

Sizes: TypeAlias = int | Sequence[int]
Reduction: TypeAlias = Callable[[jax.Array, np.ndarray, int], jax.Array]
"""Reduces the steps of adaptive windows along a dim, given which steps are inside their window."""


@dataclasses.dataclass(frozen=True)
class SpatialDims:
    """Positions of batch, channels and `rank` spatial dims."""

    rank: int
    channels_last: bool

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial dims."""
        first = 1 if self.channels_last else 2
        return tuple(range(first, first + self.rank))

    @property
    def channel_axis(self) -> int:
        """The dim of the channels."""
        return self.rank + 1 if self.channels_last else 1

    @property
    def dimension_numbers(self) -> tuple[str, str, str]:
        """The dims of inputs, kernel and outputs for `jax.lax`, such as `("NHWC", "HWIO", "NHWC")`."""
        spatial = "DHW"[-self.rank :]
        inputs = f"N{spatial}C" if self.channels_last else f"NC{spatial}"
        return inputs, f"{spatial}IO", inputs

    def per_dim(self, spatial: Sequence[Any], other: Any) -> tuple[Any, ...]:
        """Return a value for each dim: `spatial` for spatial dims, `other` for batch and channels."""
        return (other, *spatial, other) if self.channels_last else (other, other, *spatial)


def convolve(
    dims: SpatialDims,
    inputs: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: str,
    dilation_rate: Sequence[int],
    groups: int = 1,
) -> jax.Array:
    """Convolve inputs in groups of channels with `kernel` (*window, channels per group, filters), in its dtype."""
    before = [(rate * (size - 1), 0) for rate, size in zip(dilation_rate, kernel.shape, strict=False)]
    return jax.lax.conv_general_dilated(
        inputs.astype(kernel.dtype),
        kernel,
        strides,
        before if padding == "causal" else padding.upper(),
        rhs_dilation=dilation_rate,
        dimension_numbers=dims.dimension_numbers,
        feature_group_count=groups,
    )


def grouped_kernel(kernel: jax.Array) -> jax.Array:
    """Reshape a depthwise kernel for a convolution with one group per channel."""
    *window, channels, multiplier = kernel.shape
    return kernel.reshape(*window, 1, channels * multiplier)


def convolve_transposed(
    dims: SpatialDims,
    inputs: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: str,
    output_padding: Sequence[int] | None,
    dilation_rate: Sequence[int],
) -> jax.Array:
    """Return the gradient of a convolution with `kernel` (*window, filters, channels) with respect to its inputs."""
    extra = [None] * dims.rank if output_padding is None else output_padding
    zeros = [
        _zeros_around((size - 1) * rate + 1, step, padding, added)
        for size, rate, step, added in zip(kernel.shape, dilation_rate, strides, extra, strict=False)
    ]
    return jax.lax.conv_transpose(
        inputs.astype(kernel.dtype),
        kernel,
        strides,
        zeros,
        rhs_dilation=dilation_rate,
        dimension_numbers=dims.dimension_numbers,
        transpose_kernel=True,
    )


def _zeros_around(window: int, stride: int, padding: str, extra: int | None) -> tuple[int, int]:
    """Return the numbers of zeros before and after the inputs of a transposed convolution, which are `stride` apart."""
    if padding == "valid":
        return window - 1, window - 1 + (max(stride - window, 0) if extra is None else extra)
    zeros = window - 2 + (stride if extra is None else window % 2 + extra)
    before = min((zeros + 1) // 2, window - 1)
    return before, zeros - before


def pooled_maxima(
    dims: SpatialDims, inputs: jax.Array, sizes: Sequence[int], strides: Sequence[int], padding: str
) -> jax.Array:
    """Return the largest value of each window of each channel."""
    lowest = -jnp.inf if jnp.issubdtype(inputs.dtype, jnp.floating) else jnp.iinfo(inputs.dtype).min
    window, steps = dims.per_dim(sizes, 1), dims.per_dim(strides, 1)
    return jax.lax.reduce_window(inputs, lowest, jax.lax.max, window, steps, padding.upper())


def pooled_means(
    dims: SpatialDims, inputs: jax.Array, sizes: Sequence[int], strides: Sequence[int], padding: str
) -> jax.Array:
    """Return the mean of each window of each channel of floats, without steps beyond the borders."""
    window, steps = dims.per_dim(sizes, 1), dims.per_dim(strides, 1)

    def sums(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, steps, padding.upper())

    if padding == "valid":
        return sums(inputs) / math.prod(sizes)
    return sums(inputs) / sums(jnp.ones(dims.per_dim([inputs.shape[axis] for axis in dims.axes], 1), inputs.dtype))


def pool_adaptively(dims: SpatialDims, inputs: jax.Array, counts: Sequence[int], reduction: Reduction) -> jax.Array:
    """Reduce spatial dims to `counts` windows by `reduction`: `largest_of_steps` or `mean_of_steps`."""
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


def _dims(name: str, inputs: jax.Array, data_format: str | None) -> SpatialDims:
    if not 3 <= inputs.ndim <= 5:
        given = f"inputs of shape {inputs.shape}"
        fix = "ops.expand_dims(inputs, 0) for a single example"
        raise ModelError(f"{name} works on a batch, channels, and one to three spatial dims", given=given, fix=fix)
    return SpatialDims(inputs.ndim - 2, check_data_format(data_format, name) == "channels_last")


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
    outputs = convolve(dims, inputs, kernel, steps, _padding(padding), rates, channels // of_group)
    if outputs.size == 0 and inputs.size > 0:
        raise _misfit(name, inputs, kernel, 'a window that fits into the inputs, or padding="same"')
    return outputs


def _misfit(name: str, inputs: jax.Array, kernel: jax.Array, expected: str) -> ModelError:
    given = f"inputs of shape {inputs.shape}, kernel of shape {kernel.shape}"
    fix = 'see data_format: "channels_last" is the default'
    return ModelError(f"{name}: the kernel does not fit the inputs", given=given, expected=expected, fix=fix)


def _depthwise(name: str, dims: SpatialDims, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    if kernel.shape[-2] != inputs.shape[dims.channel_axis]:
        raise _misfit(name, inputs, kernel, "(*window, channels, outputs of a channel)")
    return grouped_kernel(kernel)


def _convolution(
    name: str, kernel_of: Callable[[str, SpatialDims, jax.Array, jax.Array], jax.Array], doc: str
) -> Callable[..., jax.Array]:
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
    """Convolve `inputs` with `kernel`, in the element type of the kernel.

    Args:
        inputs: (batch, spatial dims, channels).
        kernel: (*window, channels, filters); with fewer channels than the inputs, groups of channels are convolved.
        strides: step of the window in each spatial dim, or in all of them.
        padding: `"valid"`, or `"same"` for windows that reach over the borders.
        data_format: `"channels_last"`, the default, or `"channels_first"` for inputs (batch, channels, spatial dims).
        dilation_rate: distance of the elements of the kernel.

    Raises:
        ModelError: the kernel does not fit, or the output would be empty.
    """,
)
depthwise_conv = _convolution(
    "depthwise_conv",
    _depthwise,
    """Convolve each channel with its own kernel, (*window, channels, outputs of a channel).

    For the other arguments see `conv`.
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
    """Convolve each channel, as `depthwise_conv`, then mix the channels; for the other arguments see `conv`.

    `pointwise_kernel` is (1, ..., channels * outputs of a channel, filters).
    """
    array = as_array(inputs)
    dims = _dims("separable_conv", array, data_format)
    kernel = _depthwise("separable_conv", dims, array, as_array(depthwise_kernel))
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
    """Return the transposed convolution, the gradient of `conv` with respect to its inputs; see `conv`.

    The kernel is (*window, filters, channels), `strides` the distance of the inputs in the output, and `output_padding`
    the number of steps added at the end of each dim; by default it follows from `padding`.
    """
    array, weights = as_array(inputs), as_array(kernel)
    dims = _dims("conv_transpose", array, data_format)
    if weights.ndim != array.ndim or weights.shape[-1] != array.shape[dims.channel_axis]:
        raise _misfit("conv_transpose", array, weights, "(*window, filters, channels)")
    steps = check_sizes("strides", strides, dims.rank, "conv_transpose")
    rates = check_sizes("dilation_rate", dilation_rate, dims.rank, "conv_transpose")
    if output_padding is not None:
        output_padding = check_sizes("output_padding", output_padding, dims.rank, "conv_transpose", least=0)
    return convolve_transposed(dims, array, weights, steps, _padding(padding), output_padding, rates)


def _pooling(name: str, pool: Callable[..., jax.Array], doc: str) -> Callable[..., jax.Array]:
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
    pooled_maxima,
    """Return the largest value of each window of each channel.

    Args:
        inputs: (batch, spatial dims, channels).
        pool_size: size of the window in each spatial dim, or in all of them.
        strides: step of the window; None for `pool_size`.
        padding: `"valid"`, or `"same"` for windows that reach over the borders.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """,
)
average_pool = _pooling(
    "average_pool",
    lambda dims, inputs, *options: pooled_means(dims, floating(inputs), *options),
    "Return the mean of each window of each channel, without steps beyond the borders; arguments as in `max_pool`.",
)


def _adaptive_pooling(name: str, reduction: Reduction, doc: str) -> Callable[..., jax.Array]:
    def applied(inputs: ArrayLike, output_size: Sizes, data_format: str | None = None) -> jax.Array:
        array = as_array(inputs)
        dims = _dims(name, array, data_format)
        return pool_adaptively(dims, array, check_sizes("output_size", output_size, dims.rank, name), reduction)

    return operation(named(applied, name, doc))


adaptive_max_pool = _adaptive_pooling(
    "adaptive_max_pool",
    largest_of_steps,
    """Return the largest values of `output_size` windows of each channel, for inputs of any size.

    Args:
        inputs: (batch, spatial dims, channels).
        output_size: number of windows in each spatial dim, or in all of them.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """,
)
adaptive_average_pool = _adaptive_pooling(
    "adaptive_average_pool",
    mean_of_steps,
    "Return the means of `output_size` windows of each channel; arguments as in `adaptive_max_pool`.",
)
