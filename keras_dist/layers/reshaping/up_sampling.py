"""Upsampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_option, check_size, check_sizes
from keras_dist.layers.spatial_layer import SpatialLayer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms


class UpSampling(SpatialLayer):
    """The base of the layers that repeat each step.

    Args:
        size: number of repetitions in each spatial dim, or one integer for all.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
    """

    def __init__(
        self, size: int | Sequence[int] = 2, data_format: str | None = None, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.size = check_sizes("size", size, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        for axis, times in zip(self.spatial_axes, self.size, strict=True):
            inputs = jnp.repeat(inputs, times, axis=axis)
        return inputs


class UpSampling1D(UpSampling, rank=1):
    """Repeat each step: (batch, steps, channels) -> (batch, steps * size, channels); `size` is one integer.

    Arguments as in `UpSampling2D`.
    """

    def __init__(self, size: int = 2, **kwargs: Any) -> None:
        super().__init__(size, **kwargs)
        check_size("size", size, self.name)


class UpSampling2D(UpSampling, rank=2):
    """Upsample images: (batch, height, width, channels) -> (batch, height * size[0], width * size[1], channels).

    Args:
        size: factors of height and width, or one integer for both.
        data_format: `"channels_last"`, the default, or `"channels_first"` for inputs (batch, channels, height, width).
        interpolation: `"nearest"`, which repeats pixels, `"bilinear"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        **kwargs: see `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.UpSampling2D((2, 3), interpolation="bilinear")(jnp.ones((2, 14, 14, 4))).shape
        (2, 28, 42, 4)
    """

    def __init__(
        self,
        size: int | Sequence[int] = 2,
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(size, data_format, **kwargs)
        self.interpolation = check_option(
            "interpolation", interpolation, image_transforms.RESIZE_INTERPOLATIONS, self.name
        )

    def call(self, inputs: jax.Array) -> jax.Array:
        if self.interpolation == "nearest":
            return super().call(inputs)
        height, width = (inputs.shape[axis] * times for axis, times in zip(self.spatial_axes, self.size, strict=True))
        return image_transforms.resize(inputs, (height, width), self.interpolation, data_format=self.data_format)


class UpSampling3D(UpSampling, rank=3):
    """Repeat each step of inputs (batch, depth, height, width, channels). Arguments as in `UpSampling2D`."""
