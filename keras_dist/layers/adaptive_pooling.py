"""`AdaptiveMaxPooling1D`, `AdaptiveMaxPooling2D`, `AdaptiveMaxPooling3D`, `AdaptiveAveragePooling1D`, ... `3D`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._arguments import check_sizes
from keras_dist.layers.spatial_layer import SpatialLayer


class AdaptivePooling(SpatialLayer):
    """The base of the layers that reduce each channel to a given number of windows, whatever the size of the input.

    Of n windows over a dim of s steps, window i goes from floor(i * s / n) to ceil((i + 1) * s / n).

    Args:
        output_size: number of windows in each spatial dim; one integer stands for all of them.
        data_format: `"channels_last"` for inputs (batch, spatial dims, channels), the default, or `"channels_first"`
            for inputs (batch, channels, spatial dims).
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `output_size` is not a size, or there is no such `data_format`.
    """

    def __init__(self, output_size: int | Sequence[int], data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(data_format, **kwargs)
        self.output_size = check_sizes("output_size", output_size, self.rank, self.name)

    def call(self, inputs: Any) -> Any:
        """One number for each window, `output_size` of them."""
        for axis, count in zip(self.spatial_axes, self.output_size, strict=True):
            size = inputs.shape[axis]
            windows = np.arange(count)
            starts, ends = windows * size // count, -(-(windows + 1) * size // count)
            steps = starts[:, None] + np.arange(max(ends - starts))
            values = jnp.take(inputs, np.minimum(steps, ends[:, None] - 1), axis=axis, mode="clip")
            inside = np.expand_dims(steps < ends[:, None], tuple(range(2, values.ndim - axis)))
            inputs = self.reduce_window(values, inside, axis + 1)
        return inputs

    def reduce_window(self, values: jax.Array, inside: np.ndarray, axis: int) -> jax.Array:
        """The numbers of the windows along one dim.

        Args:
            values: the steps of each window along `axis`; shorter windows are filled with their last one.
            inside: whether a step belongs to its window; broadcasts against `values`.
            axis: the dim to be reduced.
        """
        raise NotImplementedError


class AdaptiveMaxPooling(AdaptivePooling):
    """The base of `AdaptiveMaxPooling1D`, `AdaptiveMaxPooling2D` and `AdaptiveMaxPooling3D`."""

    def reduce_window(self, values: jax.Array, inside: np.ndarray, axis: int) -> jax.Array:
        """The largest number of each window."""
        return jnp.max(values, axis=axis)


class AdaptiveAveragePooling(AdaptivePooling):
    """The base of `AdaptiveAveragePooling1D`, `AdaptiveAveragePooling2D` and `AdaptiveAveragePooling3D`."""

    def reduce_window(self, values: jax.Array, inside: np.ndarray, axis: int) -> jax.Array:
        """The mean of each window."""
        return jnp.mean(values, axis=axis, where=inside)


class AdaptiveMaxPooling1D(AdaptiveMaxPooling):
    """The largest number of each window: inputs (batch, steps, channels) -> (batch, *output_size, channels).

    The arguments are those of `AdaptivePooling`.

    Source: `keras.layers.AdaptiveMaxPooling1D`.
    """

    rank = 1


class AdaptiveMaxPooling2D(AdaptiveMaxPooling):
    """The largest number of each window: (batch, height, width, channels) -> (batch, *output_size, channels).

    The arguments are those of `AdaptivePooling`.

    Source: `keras.layers.AdaptiveMaxPooling2D`.
    """

    rank = 2


class AdaptiveMaxPooling3D(AdaptiveMaxPooling):
    """The largest number of each window: (batch, depth, height, width, channels) -> (batch, *output_size, channels).

    The arguments are those of `AdaptivePooling`.

    Source: `keras.layers.AdaptiveMaxPooling3D`.
    """

    rank = 3


class AdaptiveAveragePooling1D(AdaptiveAveragePooling):
    """The mean of each window: inputs (batch, steps, channels) -> (batch, *output_size, channels).

    The arguments are those of `AdaptivePooling`.

    Source: `keras.layers.AdaptiveAveragePooling1D`.
    """

    rank = 1


class AdaptiveAveragePooling2D(AdaptiveAveragePooling):
    """The mean of each window: images (batch, height, width, channels) -> (batch, *output_size, channels).

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.AdaptiveAveragePooling2D((7, 5))(jnp.ones((2, 20, 30, 4))).shape
        (2, 7, 5, 4)

    The arguments are those of `AdaptivePooling`.

    Source: `keras.layers.AdaptiveAveragePooling2D`.
    """

    rank = 2


class AdaptiveAveragePooling3D(AdaptiveAveragePooling):
    """The mean of each window: volumes (batch, depth, height, width, channels) -> (batch, *output_size, channels).

    The arguments are those of `AdaptivePooling`.

    Source: `keras.layers.AdaptiveAveragePooling3D`.
    """

    rank = 3
