"""`Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

import jax

from keras_dist._support.arguments import check_size, check_sizes
from keras_dist.errors import ModelError
from keras_dist.layers.convolutional.convolution import BaseConvolution
from keras_dist.layers.weight_arguments import Identifier, KernelAndBiasArguments
from keras_dist.ops.spatial import convolve_transposed


class TransposedConvolution(BaseConvolution):
    """The base of `Conv1DTranspose`, `Conv2DTranspose` and `Conv3DTranspose`.

    Args:
        filters: number of output channels.
        strides: number of output steps for each input step, in each spatial dim, or one integer for all. Only one of
            `strides` and `dilation_rate` can be above 1.
        padding: `"valid"` for an output of all steps that a window reaches, `"same"` for size * stride steps.
        output_padding: steps added at the end, less than `strides`, in each spatial dim, or one integer for all. The
            output size is (size - 1) * stride + window + output_padding; for `"same"`, with window % 2 instead of
            window. None for the size that follows from `padding`.
        dilation_rate: distance of the outputs of a window, in each spatial dim, or one integer for all.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (*kernel_size, filters, channels), the same of `bias` (filters,), and the arguments of `Layer`.

    Source: `keras.layers.Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`.
    """

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
        self.kernel = self.add_weight((*self.kernel_size, self.filters, channels), name="kernel")
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

    Args:
        filters, strides, padding, output_padding, dilation_rate, **kwargs: as in `Conv2DTranspose`.
        kernel_size, data_format, activation, use_bias: as in `Conv2D`.
    """


class Conv2DTranspose(TransposedConvolution, rank=2):
    """Transposed convolution of inputs (batch, height, width, channels).

    Args:
        filters: channels of the output.
        strides: number of steps of the output for each one of the input; one integer stands for all dims. Only one of
            `strides` and `dilation_rate` can be above 1.
        padding: `"valid"` for all outputs that a window reaches, `"same"` for size * stride of them.
        output_padding: steps that are added at the end, below `strides`; one integer stands for all dims. The output
            has then (size - 1) * stride + window + output_padding steps, for `"same"` window % 2 in place of window.
            None for as many steps as `padding` says.
        dilation_rate: distance of the outputs of a window; one integer stands for all dims.
        kernel_size, data_format, activation, use_bias: as in `Conv2D`.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (*kernel_size, filters, channels), the same of `bias` (filters,), and the arguments of `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Conv2DTranspose(8, 3, strides=2, padding="same")(jnp.ones((2, 14, 14, 4))).shape
        (2, 28, 28, 8)
    """


class Conv3DTranspose(TransposedConvolution, rank=3):
    """Transposed convolution of inputs (batch, depth, height, width, channels).

    As in Keras, `data_format` comes before `output_padding` in positional arguments.

    Args:
        filters, strides, padding, output_padding, dilation_rate, **kwargs: as in `Conv2DTranspose`.
        kernel_size, data_format, activation, use_bias: as in `Conv2D`.
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
