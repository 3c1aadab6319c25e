"""`GlobalMaxPooling1D`, `GlobalMaxPooling2D`, `GlobalMaxPooling3D`, `GlobalAveragePooling1D`, ... `3D`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from keras_dist.layers.spatial_layer import SpatialLayer


class GlobalPooling(SpatialLayer):
    """The base of the layers that reduce each channel to one number.

    Args:
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        keepdims: whether the spatial dims stay, as 1.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: there is no such `data_format`.
    """

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any) -> None:
        super().__init__(data_format, **kwargs)
        self.keepdims = keepdims


class GlobalMaxPooling(GlobalPooling):
    """The base of `GlobalMaxPooling1D`, `GlobalMaxPooling2D` and `GlobalMaxPooling3D`."""

    def call(self, inputs: Any) -> Any:
        """The largest number of each channel, (batch, channels)."""
        return jnp.max(inputs, axis=self.spatial_axes, keepdims=self.keepdims)


class GlobalAveragePooling(GlobalPooling):
    """The base of `GlobalAveragePooling2D` and `GlobalAveragePooling3D`."""

    def call(self, inputs: Any) -> Any:
        """The mean of each channel, (batch, channels)."""
        return jnp.mean(inputs, axis=self.spatial_axes, keepdims=self.keepdims)


class GlobalMaxPooling1D(GlobalMaxPooling):
    """The largest number of each channel: inputs (batch, steps, channels) -> (batch, channels).

    The arguments are those of `GlobalPooling`.

    Source: `keras.layers.GlobalMaxPooling1D`.
    """

    rank = 1


class GlobalMaxPooling2D(GlobalMaxPooling):
    """The largest number of each channel: images (batch, height, width, channels) -> (batch, channels).

    The arguments are those of `GlobalPooling`.

    Source: `keras.layers.GlobalMaxPooling2D`.
    """

    rank = 2


class GlobalMaxPooling3D(GlobalMaxPooling):
    """The largest number of each channel: volumes (batch, depth, height, width, channels) -> (batch, channels).

    The arguments are those of `GlobalPooling`.

    Source: `keras.layers.GlobalMaxPooling3D`.
    """

    rank = 3


class GlobalAveragePooling1D(GlobalPooling):
    """The mean of each channel over the steps that are not masked: (batch, steps, channels) -> (batch, channels).

    The arguments are those of `GlobalPooling`.

    Differs from Keras: where all steps are masked the mean is 0, not NaN.

    Source: `keras.layers.GlobalAveragePooling1D`.
    """

    rank = 1
    supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """The mean of each channel, (batch, channels).

        Args:
            inputs: (batch, steps, channels), or (batch, channels, steps).
            mask: true for the steps that count, (batch, steps).
        """
        axis = self.spatial_axes
        if mask is None:
            return jnp.mean(inputs, axis=axis, keepdims=self.keepdims)
        counts = jnp.expand_dims(mask, self.channel_axis).astype(bool)
        total = jnp.sum(inputs, axis=axis, keepdims=self.keepdims, where=counts)
        return total / jnp.maximum(jnp.sum(counts, axis=axis, keepdims=self.keepdims), 1)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: there are no steps any more."""
        return None


class GlobalAveragePooling2D(GlobalAveragePooling):
    """The mean of each channel: images (batch, height, width, channels) -> (batch, channels).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.GlobalAveragePooling2D(keepdims=True)(jnp.ones((2, 7, 7, 4))).shape
        (2, 1, 1, 4)

    The arguments are those of `GlobalPooling`.

    Source: `keras.layers.GlobalAveragePooling2D`.
    """

    rank = 2


class GlobalAveragePooling3D(GlobalAveragePooling):
    """The mean of each channel: volumes (batch, depth, height, width, channels) -> (batch, channels).

    The arguments are those of `GlobalPooling`.

    Source: `keras.layers.GlobalAveragePooling3D`.
    """

    rank = 3


GlobalMaxPool1D = GlobalMaxPooling1D
GlobalMaxPool2D = GlobalMaxPooling2D
GlobalMaxPool3D = GlobalMaxPooling3D
GlobalAvgPool1D = GlobalAveragePooling1D
GlobalAvgPool2D = GlobalAveragePooling2D
GlobalAvgPool3D = GlobalAveragePooling3D
