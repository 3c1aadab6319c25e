"""`Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from keras_dist._arguments import check_size, check_sizes
from keras_dist.errors import ModelError
from keras_dist.layers.convolution import BaseConvolution


class TransposedConvolution(BaseConvolution):
    """The base of `Conv1DTranspose`, `Conv2DTranspose` and `Conv3DTranspose`.

    What a convolution does to gradients: from something of the shape of its output to something of that of its input.

    Args:
        filters: channels of the output.
        kernel_size: size of the window in each spatial dim; one integer stands for all of them.
        strides: how many steps of the output each one of the input makes; likewise. Only one of `strides` and
            `dilation_rate` can be above 1.
        padding: `"valid"` for all outputs that a window reaches, `"same"` for size * stride of them.
        output_padding: steps that are added at the end, below `strides`; as `kernel_size`. The output has then
            (size - 1) * stride + window + output_padding steps, for `"same"` window % 2 in place of window. None for
            as many steps as `padding` says.
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        dilation_rate: distance of the outputs of a window; as `kernel_size`.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (*kernel_size, filters, channels).
        bias_initializer: gives the first value of `bias` (filters,).
        kernel_regularizer: a function of `kernel` that is added to the loss.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        kernel_constraint: a function of `kernel`, applied after each update.
        bias_constraint: likewise.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is none of its options or not a size, or `output_padding` is not below `strides`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        output_padding: int | Sequence[int] | None = None,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        *,
        kernel_layout: Any = None,
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
        self.output_padding = None if output_padding is None else self._check_output_padding(output_padding)
        self.check_strides_or_dilation()
        self.describe_weight("kernel", kernel_initializer, kernel_regularizer, kernel_constraint, kernel_layout)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, filters, channels) and `bias` (filters,)."""
        channels = self.channels_of(input_shape)
        self.kernel = self.add_weight((*self.kernel_size, self.filters, channels), name="kernel")
        if self.use_bias:
            self.bias = self.add_weight((self.filters,), name="bias")

    def call(self, inputs: Any) -> Any:
        """The output, in which `filters` stands for the channels of the inputs."""
        kernel = self.kernel[...]
        outputs = jax.lax.conv_transpose(
            inputs.astype(kernel.dtype),
            kernel,
            self.strides,
            [self._zeros_around(dim) for dim in range(self.rank)],
            rhs_dilation=self.dilation_rate,
            dimension_numbers=self.dimension_numbers,
            transpose_kernel=True,
        )
        return self.activate(self.check_not_empty(outputs, inputs))

    def _zeros_around(self, dim: int) -> tuple[int, int]:
        """How many zeros stand before and after the inputs, once these are `strides` apart from each other."""
        stride = self.strides[dim]
        window = (self.kernel_size[dim] - 1) * self.dilation_rate[dim] + 1
        extra = None if self.output_padding is None else self.output_padding[dim]
        if self.padding == "valid":
            return window - 1, window - 1 + (max(stride - window, 0) if extra is None else extra)
        zeros = window - 2 + (stride if extra is None else window % 2 + extra)
        before = min((zeros + 1) // 2, window - 1)
        return before, zeros - before

    def _check_output_padding(self, output_padding: Any) -> tuple[int, ...]:
        sizes = check_sizes("output_padding", output_padding, self.rank, self.name, least=0)
        if any(size >= stride for size, stride in zip(sizes, self.strides, strict=True)):
            raise ModelError(
                f"`output_padding` of layer {self.name!r} is too large",
                given=f"output_padding={sizes}, strides={self.strides}",
                expected="less than `strides` in each dim",
                fix="output_padding=None, for as many steps as `padding` says",
            )
        return sizes


class Conv1DTranspose(TransposedConvolution):
    """Transposed convolution over one dim: inputs (batch, steps, channels) -> (batch, new steps, filters).

    The arguments are those of `TransposedConvolution`.

    Source: `keras.layers.Conv1DTranspose`.
    """

    rank = 1


class Conv2DTranspose(TransposedConvolution):
    """Transposed convolution over two dims: images (batch, height, width, channels) -> (batch, ..., filters).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Conv2DTranspose(8, 3, strides=2, padding="same")(jnp.ones((2, 14, 14, 4))).shape
        (2, 28, 28, 8)

    The arguments are those of `TransposedConvolution`.

    Source: `keras.layers.Conv2DTranspose`.
    """

    rank = 2


class Conv3DTranspose(TransposedConvolution):
    """Transposed convolution over three dims: volumes (batch, depth, height, width, channels) -> (batch, ..., filters).

    The arguments are those of `TransposedConvolution`; `data_format` stands before `output_padding`, as in Keras.

    Source: `keras.layers.Conv3DTranspose`.
    """

    rank = 3

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        output_padding: int | Sequence[int] | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        *,
        kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            strides,
            padding,
            output_padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            kernel_layout=kernel_layout,
            bias_layout=bias_layout,
            **kwargs,
        )


Convolution1DTranspose = Conv1DTranspose
Convolution2DTranspose = Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
