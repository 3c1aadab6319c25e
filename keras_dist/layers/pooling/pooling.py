"""Pooling over windows, over whole channels (`Global...`), and to a given output size (`Adaptive...`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_option, check_sizes
from keras_dist._support.types import PyTree
from keras_dist.layers.base.spatial_layer import SpatialLayer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.ops import spatial

__all__ = ["AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D", "AdaptiveMaxPooling1D"]
__all__ += ["AdaptiveMaxPooling2D", "AdaptiveMaxPooling3D", "AveragePooling1D", "AveragePooling2D", "AveragePooling3D"]
__all__ += ["AvgPool1D", "AvgPool2D", "AvgPool3D", "GlobalAveragePooling1D", "GlobalAveragePooling2D"]
__all__ += ["GlobalAveragePooling3D", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalAvgPool3D", "GlobalMaxPool1D"]
__all__ += ["GlobalMaxPool2D", "GlobalMaxPool3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"]
__all__ += ["MaxPool1D", "MaxPool2D", "MaxPool3D", "MaxPooling1D", "MaxPooling2D", "MaxPooling3D"]


class Pooling(SpatialLayer):
    """The base of layers that reduce windows of each channel to one number."""

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

    def _pooled(self, inputs: jax.Array, pool: Callable[..., jax.Array]) -> jax.Array:
        outputs = pool(self._dims, inputs, self.pool_size, self.strides, self.padding)
        return self.check_not_empty(outputs, inputs)


class MaxPooling(Pooling):
    """The base of `MaxPooling1D`, `MaxPooling2D` and `MaxPooling3D`."""

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

    def call(self, inputs: jax.Array) -> jax.Array:
        return self._pooled(inputs, spatial.pooled_maxima)


class AveragePooling(Pooling):
    """The base of `AveragePooling1D`, `AveragePooling2D` and `AveragePooling3D`; means do not include padding."""

    pool_mode = "average"

    def call(self, inputs: jax.Array) -> jax.Array:
        if not jnp.issubdtype(inputs.dtype, jnp.floating):
            inputs = inputs.astype(self.compute_dtype)
        return self._pooled(inputs, spatial.pooled_means)


class GlobalPooling(SpatialLayer):
    """The base of layers that reduce each channel to one number."""

    def __init__(
        self, data_format: str | None = None, keepdims: bool = False, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.keepdims = keepdims


class GlobalMaxPooling(GlobalPooling):
    """The base of `GlobalMaxPooling1D`, `GlobalMaxPooling2D` and `GlobalMaxPooling3D`."""

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the largest value of each channel, (batch, channels)."""
        return jnp.max(inputs, axis=self.spatial_axes, keepdims=self.keepdims)


class GlobalAveragePooling(GlobalPooling):
    """The base of `GlobalAveragePooling2D` and `GlobalAveragePooling3D`."""

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the mean of each channel, (batch, channels)."""
        return jnp.mean(inputs, axis=self.spatial_axes, keepdims=self.keepdims)


class AdaptivePooling(SpatialLayer):
    """The base of layers that reduce each channel to a given size, for inputs of any size."""

    reduction: spatial.Reduction

    def __init__(
        self, output_size: int | Sequence[int], data_format: str | None = None, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.output_size = check_sizes("output_size", output_size, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the reduced windows, (batch, *output_size, channels)."""
        return spatial.pool_adaptively(self._dims, inputs, self.output_size, self.reduction)


class AdaptiveMaxPooling(AdaptivePooling):
    """The base of `AdaptiveMaxPooling1D`, `AdaptiveMaxPooling2D` and `AdaptiveMaxPooling3D`."""

    reduction = staticmethod(spatial.largest_of_steps)


class AdaptiveAveragePooling(AdaptivePooling):
    """The base of `AdaptiveAveragePooling1D`, `AdaptiveAveragePooling2D` and `AdaptiveAveragePooling3D`."""

    reduction = staticmethod(spatial.mean_of_steps)


class MaxPooling1D(MaxPooling, rank=1):
    """Max pooling of inputs (batch, steps, channels). Arguments as in `MaxPooling2D`."""


class AveragePooling1D(AveragePooling, rank=1):
    """The mean of each window of inputs (batch, steps, channels). Arguments as in `MaxPooling2D`."""


class MaxPooling2D(MaxPooling, rank=2):
    """Max pooling: the largest value of each window of inputs (batch, height, width, channels).

    Args:
        pool_size: size of the window in each spatial dim, or one integer for all.
        strides: step of the window in each spatial dim, or one integer for all. None for `pool_size`.
        padding: `"valid"` for no padding; `"same"` for padding to an output size of ceil(size / stride).
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        name, **kwargs: see `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.MaxPooling2D()(jnp.ones((2, 28, 28, 4))).shape
        (2, 14, 14, 4)
    """


class AveragePooling2D(AveragePooling, rank=2):
    """The mean of each window of inputs (batch, height, width, channels). Arguments as in `MaxPooling2D`."""


class MaxPooling3D(MaxPooling, rank=3):
    """Max pooling of inputs (batch, depth, height, width, channels). Arguments as in `MaxPooling2D`."""


class AveragePooling3D(AveragePooling, rank=3):
    """The mean of each window of inputs (batch, depth, height, width, channels). Arguments as in `MaxPooling2D`."""


class GlobalMaxPooling1D(GlobalMaxPooling, rank=1):
    """The maximum of each channel of inputs (batch, steps, channels). Arguments as in `GlobalAveragePooling2D`."""


class GlobalAveragePooling1D(GlobalPooling, rank=1):
    """The mean of each channel over unmasked steps: (batch, steps, channels) -> (batch, channels).

    Arguments as in `GlobalAveragePooling2D`.

    Differs from Keras: where all steps are masked the mean is 0, not NaN.
    """

    supports_masking = True

    def call(self, inputs: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Return the mean of each channel, (batch, channels).

        Args:
            inputs: (batch, steps, channels), or (batch, channels, steps).
            mask: boolean, valid steps, (batch, steps).
        """
        axis = self.spatial_axes
        if mask is None:
            return jnp.mean(inputs, axis=axis, keepdims=self.keepdims)
        counts = jnp.expand_dims(mask, self._dims.channel_axis).astype(bool)
        total = jnp.sum(inputs, axis=axis, keepdims=self.keepdims, where=counts)
        return total / jnp.maximum(jnp.sum(counts, axis=axis, keepdims=self.keepdims), 1)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> None:
        """Return None: the output has no steps."""
        return None


class GlobalMaxPooling2D(GlobalMaxPooling, rank=2):
    """The maximum of each channel of (batch, height, width, channels). Arguments as in `GlobalAveragePooling2D`."""


class GlobalAveragePooling2D(GlobalAveragePooling, rank=2):
    """Global average pooling: the mean of each channel of inputs (batch, height, width, channels).

    Args:
        keepdims: whether the spatial dims stay, as 1.
        data_format, **kwargs: as in `MaxPooling2D`.
    """


class GlobalMaxPooling3D(GlobalMaxPooling, rank=3):
    """The maximum of each channel of inputs (batch, depth, height, width, channels).

    Arguments as in `GlobalAveragePooling2D`.
    """


class GlobalAveragePooling3D(GlobalAveragePooling, rank=3):
    """The mean of each channel of inputs (batch, depth, height, width, channels).

    Arguments as in `GlobalAveragePooling2D`.
    """


class AdaptiveMaxPooling1D(AdaptiveMaxPooling, rank=1):
    """`output_size` maxima of inputs (batch, steps, channels). Arguments as in `AdaptiveAveragePooling2D`."""


class AdaptiveAveragePooling1D(AdaptiveAveragePooling, rank=1):
    """`output_size` means of inputs (batch, steps, channels). Arguments as in `AdaptiveAveragePooling2D`."""


class AdaptiveMaxPooling2D(AdaptiveMaxPooling, rank=2):
    """`output_size` maxima of inputs (batch, height, width, channels). Arguments as in `AdaptiveAveragePooling2D`."""


class AdaptiveAveragePooling2D(AdaptiveAveragePooling, rank=2):
    """Adaptive average pooling of inputs (batch, height, width, channels): `output_size` means.

    Args:
        output_size: number n of windows in each spatial dim; one integer stands for all of them. Over a dim of s steps,
            window i goes from floor(i * s / n) to ceil((i + 1) * s / n).
        data_format, **kwargs: as in `MaxPooling2D`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.AdaptiveAveragePooling2D((7, 5))(jnp.ones((2, 20, 30, 4))).shape
        (2, 7, 5, 4)
    """


class AdaptiveMaxPooling3D(AdaptiveMaxPooling, rank=3):
    """`output_size` maxima of inputs (batch, depth, height, width, channels).

    Arguments as in `AdaptiveAveragePooling2D`.
    """


class AdaptiveAveragePooling3D(AdaptiveAveragePooling, rank=3):
    """`output_size` means of inputs (batch, depth, height, width, channels).

    Arguments as in `AdaptiveAveragePooling2D`.
    """


MaxPool1D = MaxPooling1D
MaxPool2D = MaxPooling2D
MaxPool3D = MaxPooling3D
AvgPool1D = AveragePooling1D
AvgPool2D = AveragePooling2D
AvgPool3D = AveragePooling3D
GlobalMaxPool1D = GlobalMaxPooling1D
GlobalMaxPool2D = GlobalMaxPooling2D
GlobalMaxPool3D = GlobalMaxPooling3D
GlobalAvgPool1D = GlobalAveragePooling1D
GlobalAvgPool2D = GlobalAveragePooling2D
GlobalAvgPool3D = GlobalAveragePooling3D
