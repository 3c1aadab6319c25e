"""`RandomBrightness` and `RandomContrast`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer, check_range, check_value_range

__all__ = ["RandomBrightness", "RandomContrast"]


class BrightnessLayer(RandomImageLayer):
    """The base of layers that change the values of pixels, but not masks, by a number between two limits."""

    moves_pixels = False
    factor_bounds: ClassVar[tuple[float, float]] = (0, 1)

    def __init__(
        self,
        factor: Factor,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        *,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.value_range = check_value_range(value_range, self.name)
        self.factor = check_range("factor", factor, self.factor_bounds, self.name)

    def _clipped(self, images: jax.Array) -> jax.Array:
        return jnp.clip(images, *self.value_range)


class RandomBrightness(BrightnessLayer):
    """Add a random number to the pixels of each image in training.

    Args:
        factor: smallest and largest number, as fractions of the value range; a number x stands for (-x, x).
        value_range: the least and the largest value of pixels; results are cut to it.
        seed: fixes the numbers; by default they follow from the model's seed.
        data_format: `"channels_last"`, the default, for images (height, width, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
    """

    factor_bounds = (-1, 1)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        low, high = self.value_range
        return {"rgb_delta": self._uniform(images, self.factor, seed, 1, 1, 1) * (high - low)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return self._clipped(images + transformation["rgb_delta"].astype(images.dtype))


class RandomContrast(BrightnessLayer):
    """Multiply the deviations of pixels from the mean of each image by a random factor in training.

    Args:
        factor: (l, u) for factors between 1 - l and 1 + u; a number x stands for (0, x).
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        low, high = self.factor
        return {"contrast_factor": self._uniform(images, (1.0 - low, 1.0 + high), seed, 1, 1, 1)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        mean = jnp.mean(images, self._axes, keepdims=True)
        return self._clipped((images - mean) * transformation["contrast_factor"] + mean)
