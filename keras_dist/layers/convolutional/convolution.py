"""Convolution layers: plain, depthwise, separable and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import activations
from keras_dist._support.arguments import check_option, check_size, check_sizes
from keras_dist._support.dim_names import INPUTS, OUTPUTS, DimNames
from keras_dist.errors import ModelError
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.lora import LoraLayer
from keras_dist.layers.base.spatial_layer import SpatialLayer
from keras_dist.layers.base.weight_arguments import (
    BiasArguments,
    DepthwiseArguments,
    Identifier,
    KernelAndBiasArguments,
    SeparableArguments,
)
from keras_dist.ops.spatial import convolve, convolve_transposed, grouped_kernel
from keras_dist.variables.variable import Variable

__all__ = ["Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Convolution1D"]
__all__ += ["Convolution1DTranspose", "Convolution2D", "Convolution2DTranspose", "Convolution3D"]
__all__ += ["Convolution3DTranspose", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"]
__all__ += ["SeparableConvolution1D", "SeparableConvolution2D"]


class BaseConvolution(SpatialLayer):
    """The base of all convolutions: a window over the spatial dims, a bias, an activation."""

    paddings: tuple[str, ...] = ("valid", "same")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int],
        padding: str,
        data_format: str | None,
        dilation_rate: int | Sequence[int],
        activation: Identifier,
        use_bias: bool,
        **kwargs: Unpack[BiasArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.kernel_size = check_sizes("kernel_size", kernel_size, self.rank, self.name)
        self.strides = check_sizes("strides", strides, self.rank, self.name)
        self.dilation_rate = check_sizes("dilation_rate", dilation_rate, self.rank, self.name)
        self.padding = check_option("padding", padding, self.paddings, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias

    def channels_of(self, input_shape: tuple[int, ...]) -> int:
        """Return the number of input channels, and require it of later inputs."""
        axis = self._dims.channel_axis
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={axis: input_shape[axis]})
        return input_shape[axis]

    def add_kernel(
        self, shape: tuple[int, ...], name: str, argument: str, dim_names: DimNames | None = None
    ) -> Variable:
        """Create the weight `name`, described by the arguments `<argument>_initializer` and so on."""
        return self.add_weight(
            shape,
            getattr(self, f"{argument}_initializer"),
            name=name,
            regularizer=getattr(self, f"{argument}_regularizer"),
            constraint=getattr(self, f"{argument}_constraint"),
            layout=getattr(self, f"{argument}_layout"),
            dim_names=dim_names,
        )

    def convolve(self, inputs: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
        """Convolve the inputs in groups of channels with `kernel` (window, channels of a group, outputs)."""
        outputs = convolve(self._dims, inputs, kernel, self.strides, self.padding, self.dilation_rate, groups)
        return self.check_not_empty(outputs, inputs)

    def convolve_each_channel(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Convolve each channel with its part of `kernel` (window, channels, outputs of a channel)."""
        return self.convolve(inputs, grouped_kernel(kernel), groups=kernel.shape[-2])

    def activate(self, outputs: jax.Array) -> jax.Array:
        """Add the bias, and apply the activation."""
        if self.use_bias:
            spatial = range(1, self.rank + 1) if self._dims.channel_axis == 1 else ()
            outputs = outputs + jnp.expand_dims(self.bias[...], spatial)
        return outputs if self.activation is None else self.activation(outputs)

    def check_strides_or_dilation(self) -> None:
        """Check that strides and dilation are not both above 1."""
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            given = f"strides={self.strides}, dilation_rate={self.dilation_rate}"
            fix = "strides=1, then a pooling layer with pool_size=1 and these strides"
            raise ModelError(f"layer {self.name!r} has strides and a dilation_rate", given=given, fix=fix)


class Convolution(LoraLayer, BaseConvolution):
    """The base of `Conv1D`, `Conv2D` and `Conv3D`; for the arguments see `Conv2D`."""

    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        options = (strides, padding, data_format, dilation_rate, activation, use_bias)
        BaseConvolution.__init__(self, kernel_size, *options, **kwargs)
        self._describe_lora(lora_rank, lora_alpha)
        self.filters = check_size("filters", filters, self.name)
        self.groups = check_size("groups", groups, self.name)
        self._check_groups("filters", self.filters)
        self.check_strides_or_dilation()

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, channels // groups, filters) and `bias` (filters,)."""
        channels = self.channels_of(input_shape)
        self._check_groups("channels of the input", channels)
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        self.kernel = self._add_adapted(shape, (*[INPUTS] * (self.rank + 1), OUTPUTS))
        if self.use_bias:
            self.bias = self.add_weight((self.filters,), name="bias")
        self._add_factors()

    def call(self, inputs: jax.Array) -> jax.Array:
        return self.activate(self._adapted_outputs(inputs, lambda x, kernel: self.convolve(x, kernel, self.groups)))

    def _check_groups(self, what: str, size: int) -> None:
        if size % self.groups:
            given = f"groups={self.groups}, {size} {what}"
            fix = f"one of {[n for n in range(1, size + 1) if size % n == 0]}, or another number of filters or channels"
            raise ModelError(f"`groups` of layer {self.name!r} must divide the {what}", given=given, fix=fix)


class Conv1D(Convolution, rank=1):
    """Convolution of inputs (batch, steps, channels).

    Arguments as in `Conv2D`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Conv1D(8, 3, padding="causal", dilation_rate=2)(jnp.ones((2, 10, 4))).shape
        (2, 10, 8)
    """

    paddings = ("valid", "same", "causal")


class Conv2D(Convolution, rank=2):
    """Convolution of inputs (batch, height, width, channels).

    Args:
        filters: number of output channels.
        kernel_size: size of the window in each spatial dim, or one integer for all.
        strides: step of the window in each spatial dim, or one integer for all.
        padding: `"valid"` for no padding; `"same"` for zero padding to an output size of ceil(size / stride); in one
            dim also `"causal"` for zeros before the input, so that no output depends on later inputs.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        dilation_rate: distance of the inputs in a window, in each spatial dim, or one integer for all. Only one of
            `strides` and `dilation_rate` can be above 1.
        groups: number of groups of channels with separate filters.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        lora_rank, lora_alpha: as in `Dense`.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (*kernel_size, channels // groups, filters), the same of `bias` (filters,), and the arguments of
            `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(jnp.ones((2, 28, 28, 1))).shape
        (2, 14, 14, 8)
    """


class Conv3D(Convolution, rank=3):
    """Convolution of inputs (batch, depth, height, width, channels). Arguments as in `Conv2D`."""


class DepthwiseConvolution(BaseConvolution):
    """The base of `DepthwiseConv1D` and `DepthwiseConv2D`, which convolve each channel separately."""

    weight_initializers: ClassVar = {"depthwise": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[DepthwiseArguments],
    ) -> None:
        super().__init__(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, **kwargs)
        self.depth_multiplier = check_size("depth_multiplier", depth_multiplier, self.name)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, channels, depth_multiplier) and `bias` (channels * depth_multiplier,)."""
        channels = self.channels_of(input_shape)
        self.kernel = self.add_kernel((*self.kernel_size, channels, self.depth_multiplier), "kernel", "depthwise")
        if self.use_bias:
            self.bias = self.add_weight((channels * self.depth_multiplier,), name="bias")

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the output, with `depth_multiplier` channels for each input channel."""
        return self.activate(self.convolve_each_channel(inputs, self.kernel[...]))


class DepthwiseConv1D(DepthwiseConvolution, rank=1):
    """Depthwise convolution of inputs (batch, steps, channels).

    Arguments as in `DepthwiseConv2D` and as in `Conv2D`.
    """


class DepthwiseConv2D(DepthwiseConvolution, rank=2):
    """Depthwise convolution of inputs (batch, height, width, channels): each channel is convolved separately.

    Args:
        depth_multiplier: number of output channels for each input channel.
        kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias: as in `Conv2D`.
        **kwargs: `depthwise_initializer`, `depthwise_regularizer`, `depthwise_constraint` and `depthwise_layout` of the
            weight `kernel` (*kernel_size, channels, depth_multiplier), the same arguments for `bias`
            (channels * depth_multiplier,), and the arguments of `Layer`.
    """


class SeparableConvolution(BaseConvolution):
    """The base of `SeparableConv1D` and `SeparableConv2D`, which convolve each channel, then mix channels."""

    weight_initializers: ClassVar = {"depthwise": "glorot_uniform", "pointwise": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[SeparableArguments],
    ) -> None:
        super().__init__(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, **kwargs)
        self.filters = check_size("filters", filters, self.name)
        self.depth_multiplier = check_size("depth_multiplier", depth_multiplier, self.name)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `depthwise_kernel`, `pointwise_kernel` and `bias`; for their shapes see `SeparableConv2D`."""
        channels = self.channels_of(input_shape)
        self.depthwise_kernel = self.add_kernel(
            (*self.kernel_size, channels, self.depth_multiplier), "depthwise_kernel", "depthwise"
        )
        shape = (*(1,) * self.rank, channels * self.depth_multiplier, self.filters)
        names = (*[INPUTS] * (self.rank + 1), OUTPUTS)
        self.pointwise_kernel = self.add_kernel(shape, "pointwise_kernel", "pointwise", names)
        if self.use_bias:
            self.bias = self.add_weight((self.filters,), name="bias")

    def call(self, inputs: jax.Array) -> jax.Array:
        channels = self.convolve_each_channel(inputs, self.depthwise_kernel[...])
        ones = (1,) * self.rank
        return self.activate(convolve(self._dims, channels, self.pointwise_kernel[...], ones, "valid", ones))


class SeparableConv1D(SeparableConvolution, rank=1):
    """Separable convolution of inputs (batch, steps, channels).

    Arguments as in `SeparableConv2D` and as in `Conv2D`.
    """


class SeparableConv2D(SeparableConvolution, rank=2):
    """Separable convolution of inputs (batch, height, width, channels): each channel alone, then all together.

    Args:
        filters: number of output channels.
        depth_multiplier: number of channels for each input channel before they are mixed.
        kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias: as in `Conv2D`.
        **kwargs: `depthwise_initializer`, `depthwise_regularizer`, `depthwise_constraint` and `depthwise_layout` of the
            weight `depthwise_kernel` (*kernel_size, channels, depth_multiplier). The same with `pointwise` for
            `pointwise_kernel` (1, ..., channels * depth_multiplier, filters), and with `bias` for `bias` (filters,).
            The arguments of `Layer`.
    """


Convolution1D = Conv1D
Convolution2D = Conv2D
Convolution3D = Conv3D
SeparableConvolution1D = SeparableConv1D
SeparableConvolution2D = SeparableConv2D


class TransposedConvolution(BaseConvolution):
    """The base of `Conv1DTranspose`, `Conv2DTranspose` and `Conv3DTranspose`."""

    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        output_padding: int | Sequence[int] | None = None,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        super().__init__(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, **kwargs)
        self.filters = check_size("filters", filters, self.name)
        self.output_padding = None if output_padding is None else self._check_output_padding(output_padding)
        self.check_strides_or_dilation()

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, filters, channels) and `bias` (filters,)."""
        channels = self.channels_of(input_shape)
        names = (*[INPUTS] * self.rank, OUTPUTS, INPUTS)
        self.kernel = self.add_weight((*self.kernel_size, self.filters, channels), name="kernel", dim_names=names)
        if self.use_bias:
            self.bias = self.add_weight((self.filters,), name="bias")

    def call(self, inputs: jax.Array) -> jax.Array:
        sizes = (self.strides, self.padding, self.output_padding, self.dilation_rate)
        outputs = convolve_transposed(self._dims, inputs, self.kernel[...], *sizes)
        return self.activate(self.check_not_empty(outputs, inputs))

    def _check_output_padding(self, output_padding: int | Sequence[int]) -> tuple[int, ...]:
        sizes = check_sizes("output_padding", output_padding, self.rank, self.name, least=0)
        if any(size >= stride for size, stride in zip(sizes, self.strides, strict=True)):
            summary = f"`output_padding` of layer {self.name!r} must be less than `strides` in each dim"
            fix = "output_padding=None, for as many steps as `padding` says"
            raise ModelError(summary, given=f"output_padding={sizes}, strides={self.strides}", fix=fix)
        return sizes


class Conv1DTranspose(TransposedConvolution, rank=1):
    """Transposed convolution of inputs (batch, steps, channels).

    Arguments as in `Conv2DTranspose` and as in `Conv2D`.
    """


class Conv2DTranspose(TransposedConvolution, rank=2):
    """Transposed convolution of inputs (batch, height, width, channels).

    Args:
        filters: number of output channels.
        strides: number of output steps for each input step, in each spatial dim, or one integer for all. Only one of
            `strides` and `dilation_rate` can be above 1.
        padding: `"valid"` for an output of all steps that a window reaches, `"same"` for size * stride steps.
        output_padding: steps added at the end, less than `strides`, in each spatial dim, or one integer for all. The
            output size is (size - 1) * stride + window + output_padding; for `"same"`, with window % 2 instead of
            window. None for the size that follows from `padding`.
        dilation_rate: distance of the outputs of a window, in each spatial dim, or one integer for all.
        kernel_size, data_format, activation, use_bias: as in `Conv2D`.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (*kernel_size, filters, channels), the same of `bias` (filters,), and the arguments of `Layer`.
    """


class Conv3DTranspose(TransposedConvolution, rank=3):
    """Transposed convolution of inputs (batch, depth, height, width, channels).

    Arguments as in `Conv2DTranspose` and as in `Conv2D`. As in Keras, `data_format` comes before `output_padding`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        output_padding: int | Sequence[int] | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        sizes = (kernel_size, strides, padding, output_padding, data_format, dilation_rate)
        super().__init__(filters, *sizes, activation, use_bias, **kwargs)


Convolution1DTranspose = Conv1DTranspose
Convolution2DTranspose = Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
