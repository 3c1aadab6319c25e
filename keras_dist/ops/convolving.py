"""Convolutions over one, two or three spatial dims, on `jax.lax`: arithmetic of layers and of operations."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from keras_dist.ops.spatial_dims import SpatialDims


def convolve(
    dims: SpatialDims,
    inputs: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: str,
    dilation_rate: Sequence[int],
    groups: int = 1,
) -> jax.Array:
    """Convolve inputs in groups of channels with `kernel` (*window, channels of a group, filters), in its dtype."""
    before = [(rate * (size - 1), 0) for rate, size in zip(dilation_rate, kernel.shape, strict=False)]
    return jax.lax.conv_general_dilated(
        inputs.astype(kernel.dtype),
        kernel,
        strides,
        before if padding == "causal" else padding.upper(),
        rhs_dilation=dilation_rate,
        dimension_numbers=dims.of_convolutions,
        feature_group_count=groups,
    )


def of_each_channel(kernel: jax.Array) -> jax.Array:
    """Return a kernel (*window, channels, outputs of a channel) as a kernel of groups of one channel."""
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
        dimension_numbers=dims.of_convolutions,
        transpose_kernel=True,
    )


def _zeros_around(window: int, stride: int, padding: str, extra: int | None) -> tuple[int, int]:
    """Return the numbers of zeros before and after the inputs of a transposed convolution, which are `stride` apart."""
    if padding == "valid":
        return window - 1, window - 1 + (max(stride - window, 0) if extra is None else extra)
    zeros = window - 2 + (stride if extra is None else window % 2 + extra)
    before = min((zeros + 1) // 2, window - 1)
    return before, zeros - before
