"""Convolutions and pooling over one, two or three spatial dims, on `jax.lax`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_option, check_sizes
from keras_dist._types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.layers.pooling import reduce_adaptively
from keras_dist.layers.transposed_convolution import zeros_around
from keras_dist.ops import channel_order
from keras_dist.ops.operation import as_array, floating, named, names_in, operation

Sizes: TypeAlias = int | Sequence[int]
_Reduce: TypeAlias = Callable[[jax.Array, Any, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Dims:
    """The dims of an array with batch, channels, and spatial dims.

    Attributes:
        name: of the operation, for errors.
        rank: the number of spatial dims.
        is_last: whether the channels are the last dim.
    """

    name: str
    rank: int
    is_last: bool

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial dims."""
        first = 1 if self.is_last else 2
        return tuple(range(first, first + self.rank))

    @property
    def channel_axis(self) -> int:
        """The dim of the channels."""
        return self.rank + 1 if self.is_last else 1

    @property
    def of_convolutions(self) -> tuple[str, str, str]:
        """The names of the dims of inputs, kernel and outputs, as `jax.lax` wants them."""
        spatial = "DHW"[-self.rank :]
        inputs = f"N{spatial}C" if self.is_last else f"NC{spatial}"
        return inputs, f"{spatial}IO", inputs

    def sizes(self, argument: str, value: Sizes) -> tuple[int, ...]:
        """A size for each spatial dim."""
        return check_sizes(argument, value, self.rank, self.name)

    def window(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes with 1 for batch and channels."""
        return (1, *sizes, 1) if self.is_last else (1, 1, *sizes)


def _dims(name: str, inputs: jax.Array, data_format: str | None) -> _Dims:
    if not 3 <= inputs.ndim <= 5:
        raise ModelError(
            f"{name} works on one, two or three spatial dims",
            given=f"inputs of shape {inputs.shape}",
            expected="a batch, channels, and one to three spatial dims",
            fix="ops.expand_dims(inputs, 0) for a single example",
        )
    return _Dims(name, inputs.ndim - 2, channel_order.is_last(data_format, name))


def _padding(value: str) -> str:
    return check_option("padding", value, ("valid", "same"))


def _convolved(
    dims: _Dims, inputs: jax.Array, kernel: jax.Array, strides: Sizes, padding: str, dilation_rate: Sizes
) -> jax.Array:
    channels, of_group = inputs.shape[dims.channel_axis], kernel.shape[-2]
    if kernel.ndim != inputs.ndim or channels % of_group:
        raise _misfit(dims, inputs, kernel, "(*window, channels, filters), whose channels divide those of the inputs")
    outputs = jax.lax.conv_general_dilated(
        inputs.astype(kernel.dtype),
        kernel,
        dims.sizes("strides", strides),
        _padding(padding).upper(),
        rhs_dilation=dims.sizes("dilation_rate", dilation_rate),
        dimension_numbers=dims.of_convolutions,
        feature_group_count=channels // of_group,
    )
    if outputs.size == 0 and inputs.size > 0:
        raise _misfit(dims, inputs, kernel, 'a window that fits into the inputs, or padding="same"')
    return outputs


def _misfit(dims: _Dims, inputs: jax.Array, kernel: jax.Array, expected: str) -> ModelError:
    return ModelError(
        f"{dims.name}: the kernel does not fit the inputs",
        given=f"inputs of shape {inputs.shape}, kernel of shape {kernel.shape}",
        expected=expected,
        fix='see data_format: "channels_last" is the default',
    )


def _of_each_channel(dims: _Dims, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """The kernel (window, channels, outputs of a channel) as one of groups of one channel."""
    *window, channels, multiplier = kernel.shape
    if channels != inputs.shape[dims.channel_axis]:
        raise _misfit(dims, inputs, kernel, "(*window, channels, outputs of a channel)")
    return kernel.reshape(*window, 1, channels * multiplier)


def _convolution(
    name: str, kernel_of: Callable[[_Dims, jax.Array, jax.Array], jax.Array], doc: str
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
        return _convolved(dims, array, kernel_of(dims, array, as_array(kernel)), strides, padding, dilation_rate)

    return operation(named(applied, name, doc))


conv = _convolution(
    "conv",
    lambda dims, inputs, kernel: kernel,
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
    kernel = _of_each_channel(dims, array, as_array(depthwise_kernel))
    convolved = _convolved(dims, array, kernel, strides, padding, dilation_rate)
    return _convolved(dims, convolved, as_array(pointwise_kernel), 1, "valid", dilation_rate)


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
        raise _misfit(dims, array, weights, "(*window, filters, channels)")
    steps, rates = dims.sizes("strides", strides), dims.sizes("dilation_rate", dilation_rate)
    extra: Any = [None] * dims.rank
    if output_padding is not None:
        extra = check_sizes("output_padding", output_padding, dims.rank, dims.name, least=0)
    zeros = [
        zeros_around((size - 1) * rate + 1, step, _padding(padding), added)
        for size, rate, step, added in zip(weights.shape, rates, steps, extra, strict=False)
    ]
    return jax.lax.conv_transpose(
        array.astype(weights.dtype),
        weights,
        steps,
        zeros,
        rhs_dilation=rates,
        dimension_numbers=dims.of_convolutions,
        transpose_kernel=True,
    )


def _pooling(name: str, pooled: Callable[[_Dims, jax.Array, _Reduce], jax.Array], doc: str) -> Callable[..., jax.Array]:
    """The operation `pooled` on the windows of an array, over which it gets a function that reduces them."""

    def applied(
        inputs: ArrayLike,
        pool_size: Sizes,
        strides: Sizes | None = None,
        padding: str = "valid",
        data_format: str | None = None,
    ) -> jax.Array:
        array = as_array(inputs)
        dims = _dims(name, array, data_format)
        sizes = dims.window(dims.sizes("pool_size", pool_size))
        steps = sizes if strides is None else dims.window(dims.sizes("strides", strides))

        def reduced(x: jax.Array, initial: Any, function: Any) -> jax.Array:
            return jax.lax.reduce_window(x, initial, function, sizes, steps, _padding(padding).upper())

        return pooled(dims, array, reduced)

    return operation(named(applied, name, doc))


def _largest(dims: _Dims, inputs: jax.Array, reduced: _Reduce) -> jax.Array:
    lowest = -jnp.inf if jnp.issubdtype(inputs.dtype, jnp.floating) else jnp.iinfo(inputs.dtype).min
    return reduced(inputs, lowest, jax.lax.max)


def _means(dims: _Dims, inputs: jax.Array, reduced: _Reduce) -> jax.Array:
    array = floating(inputs)
    counts = jnp.ones(dims.window([array.shape[axis] for axis in dims.axes]), array.dtype)
    return reduced(array, 0.0, jax.lax.add) / reduced(counts, 0.0, jax.lax.add)


max_pool = _pooling(
    "max_pool",
    _largest,
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
    _means,
    """Return the mean of each window of each channel; steps beyond the borders do not count.

    The arguments are those of `max_pool`.
    """,
)


def _adaptive_pooling(name: str, reduction: Any, doc: str) -> Callable[..., jax.Array]:
    def applied(inputs: ArrayLike, output_size: Sizes, data_format: str | None = None) -> jax.Array:
        array = as_array(inputs)
        dims = _dims(name, array, data_format)
        return reduce_adaptively(array, dims.axes, dims.sizes("output_size", output_size), reduction)

    return operation(named(applied, name, doc))


adaptive_max_pool = _adaptive_pooling(
    "adaptive_max_pool",
    lambda values, inside, axis: jnp.max(values, axis),
    """Return the largest values of `output_size` windows of each channel, whatever its size.

    Args:
        inputs: (batch, spatial dims, channels).
        output_size: the number of windows in each spatial dim, or in all of them.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """,
)
adaptive_average_pool = _adaptive_pooling(
    "adaptive_average_pool",
    lambda values, inside, axis: jnp.mean(values, axis, where=inside),
    """Return the means of `output_size` windows of each channel; arguments as of `adaptive_max_pool`.""",
)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
