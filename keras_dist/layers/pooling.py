"""`MaxPooling1D`, `MaxPooling2D`, `MaxPooling3D`, `AveragePooling1D`, `AveragePooling2D`, `AveragePooling3D`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_option, check_sizes
from keras_dist.layers.spatial_layer import SpatialLayer


class Pooling(SpatialLayer):
    """The base of the layers that reduce windows of each channel to one number.

    Attributes:
        pool_mode: `"max"` or `"average"`.

    Args:
        pool_size: size of the window in each spatial dim; one integer stands for all of them.
        strides: how far the window moves; likewise. None for `pool_size`.
        padding: `"valid"` for windows inside of the input, `"same"` for windows that reach over its borders, so that
            the output has ceil(size / stride) steps.
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        name: as of `Layer`.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is none of its options or not a size, or the window is larger than the input.
    """

    pool_mode: str

    def __init__(
        self,
        pool_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_format, name=name, **kwargs)
        self.pool_size = check_sizes("pool_size", pool_size, self.rank, self.name)
        self.strides = self.pool_size if strides is None else check_sizes("strides", strides, self.rank, self.name)
        self.padding = check_option("padding", padding, ("valid", "same"), self.name)

    def reduce_windows(self, inputs: jax.Array, initial: Any, operation: Callable[[Any, Any], Any]) -> jax.Array:
        """`operation` over each window; steps beyond the borders are `initial`."""
        window, strides = self.for_all_dims(self.pool_size, 1), self.for_all_dims(self.strides, 1)
        return jax.lax.reduce_window(inputs, initial, operation, window, strides, self.padding.upper())


class MaxPooling(Pooling):
    """The base of `MaxPooling1D`, `MaxPooling2D` and `MaxPooling3D`; the arguments are those of `Pooling`."""

    pool_mode = "max"

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pool_size, strides, padding, data_format, name, **kwargs)

    def call(self, inputs: Any) -> Any:
        """The largest number of each window."""
        floating = jnp.issubdtype(inputs.dtype, jnp.floating)
        lowest = -jnp.inf if floating else jnp.iinfo(inputs.dtype).min
        return self.check_not_empty(self.reduce_windows(inputs, lowest, jax.lax.max), inputs)


class AveragePooling(Pooling):
    """The base of `AveragePooling1D`, `AveragePooling2D` and `AveragePooling3D`; the arguments are those of `Pooling`.

    Steps beyond the borders, as `padding="same"` has them, do not count.
    """

    pool_mode = "average"

    def call(self, inputs: Any) -> Any:
        """The mean of each window, floating."""
        if not jnp.issubdtype(inputs.dtype, jnp.floating):
            inputs = inputs.astype(self.compute_dtype)
        sums = self.check_not_empty(self.reduce_windows(inputs, 0.0, jax.lax.add), inputs)
        if self.padding == "valid":
            return sums / math.prod(self.pool_size)
        spatial = [inputs.shape[axis] for axis in self.spatial_axes]
        return sums / self.reduce_windows(jnp.ones(self.for_all_dims(spatial, 1), inputs.dtype), 0.0, jax.lax.add)


class MaxPooling1D(MaxPooling):
    """The largest number of each window: inputs (batch, steps, channels) -> (batch, new steps, channels).

    The arguments are those of `Pooling`.

    Source: `keras.layers.MaxPooling1D`.
    """

    rank = 1


class MaxPooling2D(MaxPooling):
    """The largest number of each window: images (batch, height, width, channels) -> (batch, ..., channels).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.MaxPooling2D()(jnp.ones((2, 28, 28, 4))).shape
        (2, 14, 14, 4)

    The arguments are those of `Pooling`.

    Source: `keras.layers.MaxPooling2D`.
    """

    rank = 2


class MaxPooling3D(MaxPooling):
    """The largest number of each window: volumes (batch, depth, height, width, channels) -> (batch, ..., channels).

    The arguments are those of `Pooling`.

    Source: `keras.layers.MaxPooling3D`.
    """

    rank = 3


class AveragePooling1D(AveragePooling):
    """The mean of each window: inputs (batch, steps, channels) -> (batch, new steps, channels).

    The arguments are those of `Pooling`.

    Source: `keras.layers.AveragePooling1D`.
    """

    rank = 1


class AveragePooling2D(AveragePooling):
    """The mean of each window: images (batch, height, width, channels) -> (batch, new height, new width, channels).

    The arguments are those of `Pooling`.

    Source: `keras.layers.AveragePooling2D`.
    """

    rank = 2


class AveragePooling3D(AveragePooling):
    """The mean of each window: volumes (batch, depth, height, width, channels) -> (batch, ..., channels).

    The arguments are those of `Pooling`.

    Source: `keras.layers.AveragePooling3D`.
    """

    rank = 3


MaxPool1D = MaxPooling1D
MaxPool2D = MaxPooling2D
MaxPool3D = MaxPooling3D
AvgPool1D = AveragePooling1D
AvgPool2D = AveragePooling2D
AvgPool3D = AveragePooling3D
