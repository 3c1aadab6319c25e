"""`SeparableConv1D`, `SeparableConv2D`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from keras_dist._arguments import check_size
from keras_dist.layers.convolution import BaseConvolution


class SeparableConvolution(BaseConvolution):
    """The base of `SeparableConv1D` and `SeparableConv2D`: each channel is convolved for itself, then they are mixed.

    Args:
        filters: channels of the output.
        kernel_size: size of the window in each spatial dim; one integer stands for all of them.
        strides: how far the window moves; likewise.
        padding: `"valid"` for windows inside of the input, `"same"` for zeros around it, so that the output has
            ceil(size / stride) steps.
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        dilation_rate: distance of the inputs in a window; as `kernel_size`.
        depth_multiplier: how many channels each one of the input makes, before they are mixed.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        depthwise_initializer: gives the first value of `depthwise_kernel` (*kernel_size, channels, depth_multiplier).
        pointwise_initializer: gives the first value of `pointwise_kernel` (1, ..., channels * depth_multiplier,
            filters).
        bias_initializer: gives the first value of `bias` (filters,).
        depthwise_regularizer: a function of `depthwise_kernel` that is added to the loss.
        pointwise_regularizer: likewise.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        depthwise_constraint: a function of `depthwise_kernel`, applied after each update.
        pointwise_constraint: likewise.
        bias_constraint: likewise.
        depthwise_layout: where the dims of `depthwise_kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        pointwise_layout: likewise.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is none of its options or not a size, or the window is larger than the input.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        *,
        depthwise_layout: Any = None,
        pointwise_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kernel_size,
            strides=strides,
            padding=padding,
            data_format=data_format,
            dilation_rate=dilation_rate,
            activation=activation,
            use_bias=use_bias,
            bias_initializer=bias_initializer,
            bias_regularizer=bias_regularizer,
            bias_constraint=bias_constraint,
            bias_layout=bias_layout,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.filters = check_size("filters", filters, self.name)
        self.depth_multiplier = check_size("depth_multiplier", depth_multiplier, self.name)
        self.describe_weight(
            "depthwise", depthwise_initializer, depthwise_regularizer, depthwise_constraint, depthwise_layout
        )
        self.describe_weight(
            "pointwise", pointwise_initializer, pointwise_regularizer, pointwise_constraint, pointwise_layout
        )

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create the weights.

        `depthwise_kernel` (*kernel_size, channels, depth_multiplier), `pointwise_kernel` (1, ..., channels *
        depth_multiplier, filters) and `bias` (filters,).
        """
        channels = self.channels_of(input_shape)
        self.depthwise_kernel = self.add_kernel(
            (*self.kernel_size, channels, self.depth_multiplier), "depthwise_kernel", "depthwise"
        )
        self.pointwise_kernel = self.add_kernel(
            (*(1,) * self.rank, channels * self.depth_multiplier, self.filters), "pointwise_kernel", "pointwise"
        )
        if self.use_bias:
            self.bias = self.add_weight((self.filters,), name="bias")

    def call(self, inputs: Any) -> Any:
        """The output, in which `filters` stands for the channels of the inputs."""
        channels = self.convolve_each_channel(inputs, self.depthwise_kernel[...])
        outputs = jax.lax.conv_general_dilated(
            channels,
            self.pointwise_kernel[...],
            (1,) * self.rank,
            "VALID",
            dimension_numbers=self.dimension_numbers,
        )
        return self.activate(outputs)


class SeparableConv1D(SeparableConvolution):
    """Separable convolution over one dim: inputs (batch, steps, channels) -> (batch, new steps, filters).

    The arguments are those of `SeparableConvolution`.

    Source: `keras.layers.SeparableConv1D`.
    """

    rank = 1


class SeparableConv2D(SeparableConvolution):
    """Separable convolution over two dims: images (batch, height, width, channels) -> (batch, ..., filters).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.SeparableConv2D(8, 3)(jnp.ones((2, 28, 28, 4))).shape
        (2, 26, 26, 8)

    The arguments are those of `SeparableConvolution`.

    Source: `keras.layers.SeparableConv2D`.
    """

    rank = 2


SeparableConvolution1D = SeparableConv1D
SeparableConvolution2D = SeparableConv2D
