"""`Conv1D`, `Conv2D`, `Conv3D`, and what all convolutions have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import activations
from keras_dist._arguments import check_option, check_size, check_sizes
from keras_dist.errors import ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.spatial import SpatialLayer


class BaseConvolution(SpatialLayer):
    """The base of all convolutions: a window that moves over the spatial dims, a bias, an activation.

    The output of a convolution whose input is sharded over its batch or its spatial dims is so, too: XLA exchanges the
    borders.

    Args:
        kernel_size: size of the window in each spatial dim; one integer stands for all of them.
        strides: how far the window moves; likewise.
        padding: `"valid"` for windows inside of the input, `"same"` for zeros around it, so that the output has
            ceil(size / stride) steps.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
        dilation_rate: distance of the inputs in a window; as `kernel_size`.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        bias_initializer: gives the first value of `bias` (channels of the output,).
        bias_regularizer: a function of `bias` that is added to the loss.
        bias_constraint: a function of `bias`, applied after each update.
        bias_layout: where the dim of `bias` lies: a `TensorLayout`, or axes; layout rules win over it.
        **kwargs: as of `Layer`.

    Attributes:
        paddings: what `padding` can be.

    Raises:
        ModelError: an argument is none of its options, or not a size.
    """

    paddings: tuple[str, ...] = ("valid", "same")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        *,
        strides: int | Sequence[int],
        padding: str,
        data_format: str | None,
        dilation_rate: int | Sequence[int],
        activation: Any,
        use_bias: bool,
        bias_initializer: Any,
        bias_regularizer: Any,
        bias_constraint: Any,
        bias_layout: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.kernel_size = check_sizes("kernel_size", kernel_size, self.rank, self.name)
        self.strides = check_sizes("strides", strides, self.rank, self.name)
        self.dilation_rate = check_sizes("dilation_rate", dilation_rate, self.rank, self.name)
        self.padding = check_option("padding", padding, self.paddings, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias
        self.describe_weight("bias", bias_initializer, bias_regularizer, bias_constraint, bias_layout)

    @property
    def dimension_numbers(self) -> tuple[str, str, str]:
        """Where `jax.lax` finds the dims of inputs, kernel and outputs, such as `("NHWC", "HWIO", "NHWC")`."""
        spatial = "DHW"[-self.rank :]
        data = f"N{spatial}C" if self.channels_last else f"NC{spatial}"
        return data, f"{spatial}IO", data

    def channels_of(self, input_shape: tuple[int, ...]) -> int:
        """The channels of inputs of this shape, which all further inputs must have."""
        channels = input_shape[self.channel_axis]
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={self.channel_axis: channels})
        return channels

    def add_kernel(self, shape: tuple[int, ...], name: str, argument: str) -> Any:
        """The weight `name`, as the arguments `<argument>_initializer` and so on describe it."""
        return self.add_weight(
            shape,
            getattr(self, f"{argument}_initializer"),
            name=name,
            regularizer=getattr(self, f"{argument}_regularizer"),
            constraint=getattr(self, f"{argument}_constraint"),
            layout=getattr(self, f"{argument}_layout"),
        )

    def convolve(self, inputs: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
        """The inputs, convolved in groups of channels with `kernel` (window, channels of a group, outputs)."""
        causal = [(rate * (size - 1), 0) for rate, size in zip(self.dilation_rate, self.kernel_size, strict=True)]
        outputs = jax.lax.conv_general_dilated(
            inputs.astype(kernel.dtype),
            kernel,
            self.strides,
            causal if self.padding == "causal" else self.padding.upper(),
            rhs_dilation=self.dilation_rate,
            dimension_numbers=self.dimension_numbers,
            feature_group_count=groups,
        )
        return self.check_not_empty(outputs, inputs)

    def convolve_each_channel(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Each channel, convolved for itself with its part of `kernel` (window, channels, outputs of a channel)."""
        *window, channels, multiplier = kernel.shape
        return self.convolve(inputs, kernel.reshape(*window, 1, channels * multiplier), groups=channels)

    def activate(self, outputs: jax.Array) -> jax.Array:
        """The outputs with bias and activation."""
        if self.use_bias:
            outputs = outputs + jnp.expand_dims(self.bias[...], () if self.channels_last else range(1, self.rank + 1))
        return self.activation(outputs)

    def check_strides_or_dilation(self) -> None:
        """Check that not both are above 1.

        Raises:
            ModelError: both are.
        """
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            raise ModelError(
                f"layer {self.name!r} has strides and a dilation_rate",
                given=f"strides={self.strides}, dilation_rate={self.dilation_rate}",
                expected="one of them to be 1",
                fix="strides=1, then a pooling layer with pool_size=1 and these strides",
            )


class Convolution(BaseConvolution):
    """The base of `Conv1D`, `Conv2D` and `Conv3D`.

    Args:
        filters: channels of the output.
        kernel_size: size of the window in each spatial dim; one integer stands for all of them.
        strides: how far the window moves; likewise. Only one of `strides` and `dilation_rate` can be above 1.
        padding: `"valid"` for windows inside of the input, `"same"` for zeros around it, so that the output has
            ceil(size / stride) steps; in one dim also `"causal"`, for zeros before it, so that no output sees later
            inputs.
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        dilation_rate: distance of the inputs in a window; as `strides`.
        groups: into how many groups the channels are split; each has filters of its own.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (*kernel_size, channels // groups, filters).
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
        ModelError: an argument is none of its options or not a size, `groups` does not divide the filters or channels,
            or the window is larger than the input.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
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
        self.groups = check_size("groups", groups, self.name)
        self._check_groups("filters", self.filters)
        self.check_strides_or_dilation()
        self.describe_weight("kernel", kernel_initializer, kernel_regularizer, kernel_constraint, kernel_layout)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (*kernel_size, channels // groups, filters) and `bias` (filters,)."""
        channels = self.channels_of(input_shape)
        self._check_groups("channels of the input", channels)
        self.kernel = self.add_weight((*self.kernel_size, channels // self.groups, self.filters), name="kernel")
        if self.use_bias:
            self.bias = self.add_weight((self.filters,), name="bias")

    def call(self, inputs: Any) -> Any:
        """The output, in which `filters` stands for the channels of the inputs."""
        return self.activate(self.convolve(inputs, self.kernel[...], self.groups))

    def _check_groups(self, what: str, size: int) -> None:
        if size % self.groups:
            raise ModelError(
                f"`groups` of layer {self.name!r} does not divide the {what}",
                given=f"groups={self.groups}, {size} {what}",
                expected=f"one of {[n for n in range(1, size + 1) if size % n == 0]}",
                fix="groups=1, or another number of filters or channels",
            )


class Conv1D(Convolution):
    """Convolution over one dim, such as time: inputs (batch, steps, channels) -> (batch, new steps, filters).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Conv1D(8, 3, padding="causal", dilation_rate=2)(jnp.ones((2, 10, 4))).shape
        (2, 10, 8)

    The arguments are those of `Convolution`.

    Source: `keras.layers.Conv1D`.
    """

    rank = 1
    paddings = ("valid", "same", "causal")


class Conv2D(Convolution):
    """Convolution over two dims: images (batch, height, width, channels) -> (batch, new height, new width, filters).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(jnp.ones((2, 28, 28, 1))).shape
        (2, 14, 14, 8)

    The arguments are those of `Convolution`.

    Source: `keras.layers.Conv2D`.
    """

    rank = 2


class Conv3D(Convolution):
    """Convolution over three dims: volumes (batch, depth, height, width, channels) -> (batch, ..., filters).

    The arguments are those of `Convolution`.

    Source: `keras.layers.Conv3D`.
    """

    rank = 3


Convolution1D = Conv1D
Convolution2D = Conv2D
Convolution3D = Conv3D
