"""Layers that change hue and saturation: `RandomHue`, `RandomSaturation`, `RandomColorJitter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist.config.settings import epsilon
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer
from keras_dist.layers.preprocessing.random_colors import (
    FactorLayer,
    RandomBrightness,
    RandomContrast,
    RangeLayer,
)
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_filters


class HueLayer(FactorLayer):
    """The base of layers that change images as hue, saturation and value."""

    def _in_hsv(self, images: jax.Array, change: Callable[..., Sequence[jax.Array]]) -> jax.Array:
        """Return images of red, green and blue whose `(hue, saturation, value)` a function has changed."""
        self._check_colors(images)
        hsv = image_filters.rgb_to_hsv(jnp.moveaxis(images, self._channels, -1))
        changed = jnp.stack(change(*jnp.unstack(hsv, axis=-1)), -1)
        return jnp.moveaxis(image_filters.hsv_to_rgb(changed), -1, self._channels)


class RandomHue(HueLayer):
    """Turn the hue of each image by a random part of the circle of colours in training.

    Args:
        factor: the least and the largest part of half a circle, from 0 to 1; a number stands for 0 and itself. The
            direction is random.
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return the turns, `{"factor": (images,)}`."""
        sign = jnp.where(self._uniform(images, (0.0, 1.0), seed) > 0.5, -1.0, 1.0)
        return {"factor": sign * self._uniform(images, self.factor, seed) * 0.5}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        low, high = self.value_range
        turn = transformation["factor"].astype(images.dtype)[:, None, None]

        def turned(hue: jax.Array, *others: jax.Array) -> Sequence[jax.Array]:
            hue = hue + turn
            hue = jnp.where(hue > 1, hue - 1, hue)
            return jnp.where(hue < 0, hue + 1, hue), *others

        return jnp.clip(self._in_hsv((images - low) / (high - low), turned), 0, 1) * (high - low) + low


class RandomSaturation(HueLayer):
    """Multiply the saturation of each image by a random number in training.

    Args:
        factor: the least and the largest share f, from 0 to 1: saturation is multiplied by f / (1 - f), so that 0
            leaves gray images, 0.5 the images as they are. A number stands for its negative and itself, as in Keras.
        value_range: the least and the largest value of pixels; saturations are cut to it, as in Keras.
        data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    factor_bounds = (-1, 1)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return what saturations are multiplied by, `{"factor": (images,)}`."""
        share = self._uniform(images, self.factor, seed)
        return {"factor": share / (1 - share + epsilon())}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        factor = transformation["factor"].astype(images.dtype)[:, None, None]
        return self._in_hsv(images, lambda hue, saturation, value: (hue, self._clipped(saturation * factor), value))


class RandomColorJitter(RangeLayer):
    """Change brightness, contrast, saturation and hue of each image by random numbers in training, one after the other.

    Args:
        value_range: the least and the largest value of pixels.
        brightness_factor: as `factor` of `RandomBrightness`; None for no change.
        contrast_factor: as `factor` of `RandomContrast`.
        saturation_factor: as `factor` of `RandomSaturation`.
        hue_factor: as `factor` of `RandomHue`.
        seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        brightness_factor: Factor | None = None,
        contrast_factor: Factor | None = None,
        saturation_factor: Factor | None = None,
        hue_factor: Factor | None = None,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, seed, data_format=data_format, **kwargs)
        self.brightness_factor, self.contrast_factor = brightness_factor, contrast_factor
        self.saturation_factor, self.hue_factor = saturation_factor, hue_factor
        options: dict[str, Any] = {"data_format": data_format, "dtype": self.dtype_policy, "seed": seed}
        kinds: list[tuple[Factor | None, Callable[..., RandomImageLayer]]] = [
            (brightness_factor, RandomBrightness),
            (contrast_factor, RandomContrast),
            (saturation_factor, RandomSaturation),
            (hue_factor, RandomHue),
        ]
        self.steps = [kind(factor, value_range, **options) for factor, kind in kinds if factor is not None]

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return what each step needs, a list."""
        return [step.get_random_transformation(images, seed=seed) for step in self.steps]

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        for step, numbers in zip(self.steps, transformation, strict=True):
            images = step.transform_images(images, numbers)
        return images
