"""`DepthwiseConv1D`, `DepthwiseConv2D`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_dist._arguments import check_size
from keras_dist.layers.convolution import BaseConvolution


class DepthwiseConvolution(BaseConvolution):
    """The base of `DepthwiseConv1D` and `DepthwiseConv2D`: each channel is convolved for itself.

    Args:
        kernel_size: size of the window in each spatial dim; one integer stands for all of them.
        strides: how far the window moves; likewise.
        padding: `"valid"` for windows inside of the input, `"same"` for zeros around it, so that the output has
            ceil(size / stride) steps.
        depth_multiplier: how many channels of the output each one of the input makes.
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        dilation_rate: distance of the inputs in a window; as `kernel_size`.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        depthwise_initializer: gives the first value of `kernel` (*kernel_size, channels, depth_multiplier).
        bias_initializer: gives the first value of `bias` (channels * depth_multiplier,).
        depthwise_regularizer: a function of `kernel` that is added to the loss.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        depthwise_constraint: a function of `kernel`, applied after each update.
        bias_constraint: likewise.
        depthwise_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is none of its options or not a size, or the window is larger than the input.
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        bias_constraint: Any = None,
        *,
        depthwise_layout: Any = None,
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
        self.depth_multiplier = check_size("depth_multiplier", depth_multiplier, self.name)
        self.describe_weight(
            "depthwise", depthwise_initializer, depthwise_regularizer, depthwise_constraint, depthwise_layout
        )

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, channels, depth_multiplier) and `bias` (channels * depth_multiplier,)."""
        channels = self.channels_of(input_shape)
        self.kernel = self.add_kernel((*self.kernel_size, channels, self.depth_multiplier), "kernel", "depthwise")
        if self.use_bias:
            self.bias = self.add_weight((channels * self.depth_multiplier,), name="bias")

    def call(self, inputs: Any) -> Any:
        """The output, with `depth_multiplier` channels for each one of the inputs."""
        return self.activate(self.convolve_each_channel(inputs, self.kernel[...]))


class DepthwiseConv1D(DepthwiseConvolution):
    """Depthwise convolution over one dim: (batch, steps, c) -> (batch, new steps, c * depth_multiplier).

    The arguments are those of `DepthwiseConvolution`.

    Source: `keras.layers.DepthwiseConv1D`.
    """

    rank = 1


class DepthwiseConv2D(DepthwiseConvolution):
    """Depthwise convolution over two dims: (batch, height, width, c) -> (batch, ..., c * depth_multiplier).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.DepthwiseConv2D(3, depth_multiplier=2)(jnp.ones((2, 28, 28, 4))).shape
        (2, 26, 26, 8)

    The arguments are those of `DepthwiseConvolution`.

    Source: `keras.layers.DepthwiseConv2D`.
    """

    rank = 2
