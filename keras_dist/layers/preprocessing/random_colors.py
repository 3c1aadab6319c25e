"""Layers that change colours: `RandomBrightness`, `RandomContrast`, `RandomGrayscale`, `Solarization` and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_fraction
from keras_dist.layers.preprocessing.image_layer import (
    Factor,
    RandomImageLayer,
    check_range,
    check_value_range,
)
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops.image_transforms import rgb_to_grayscale


class ColorLayer(RandomImageLayer):
    """The base of layers that change colours, and leave masks as they are."""

    moves_pixels = False

    def _gray(self, images: jax.Array) -> jax.Array:
        """Return the brightness of images, with one channel."""
        self._check_colors(images, (1, 3))
        return rgb_to_grayscale(images, self.data_format)


class RangeLayer(ColorLayer):
    """The base of layers with a range of values.

    Args:
        value_range: the least and the largest value of pixels; results are cut to it.
    """

    def __init__(self, value_range: Sequence[float], seed: int | None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.value_range = check_value_range(value_range, self.name)

    def _clipped(self, images: jax.Array) -> jax.Array:
        return jnp.clip(images, *self.value_range)


class FactorLayer(RangeLayer):
    """The base of layers that draw a factor between two limits."""

    factor_bounds: ClassVar[tuple[float, float]] = (0, 1)

    def __init__(
        self,
        factor: Factor,
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, seed, data_format=data_format, **kwargs)
        self.factor = check_range("factor", factor, self.factor_bounds, self.name)


class BrightnessLayer(FactorLayer):
    """The base of `RandomBrightness` and `RandomContrast`, whose arguments have another order."""

    def __init__(
        self,
        factor: Factor,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        *,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **kwargs)


class RandomBrightness(BrightnessLayer):
    """Add a random number to the pixels of each image in training.

    Args:
        factor: the least and the largest number, as parts of the range of values, from -1 to 1; a number stands for
            its negative and itself.
        value_range: the least and the largest value of pixels; results are cut to it.
        seed: fixes the numbers; by default they follow from the model's seed.
        data_format: `"channels_last"`, the default, for images (height, width, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
    """

    factor_bounds = (-1, 1)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return what is added, `{"rgb_delta": (images, 1, 1, 1)}`."""
        low, high = self.value_range
        return {"rgb_delta": self._uniform(images, self.factor, seed, 1, 1, 1) * (high - low)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return self._clipped(images + transformation["rgb_delta"].astype(images.dtype))


class RandomContrast(BrightnessLayer):
    """Move the pixels of each image away from their mean, or towards it, by a random factor in training.

    Args:
        factor: two numbers, l and u: the factor is between 1 - l and 1 + u. One number stands for u; l is 0 then.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return the factors, `{"contrast_factor": (images, 1, 1, 1)}`."""
        low, high = self.factor
        return {"contrast_factor": self._uniform(images, (1.0 - low, 1.0 + high), seed, 1, 1, 1)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        mean = jnp.mean(images, self._axes, keepdims=True)
        return self._clipped((images - mean) * transformation["contrast_factor"] + mean)


class RandomColorDegeneration(FactorLayer):
    """Take a random part of the colours from each image in training.

    Args:
        factor: the least and the largest part; 1 leaves gray images.
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    factor_bounds = (-1, 1)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return the parts, `{"factor": (images, 1, 1, 1)}`."""
        return {"factor": self._uniform(images, self.factor, seed, 1, 1, 1)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return self._clipped(images + transformation["factor"] * (self._gray(images) - images))


class RandomGrayscale(ColorLayer):
    """Make some images gray in training; they keep three channels.

    Args:
        factor: the probability for each image.
        data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        factor: float = 0.5,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.factor = check_fraction("factor", factor, self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return which images become gray, (images, 1, 1, 1)."""
        return self._uniform(images, (0.0, 1.0), seed, 1, 1, 1) < self.factor

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return jnp.where(transformation, self._gray(images), images)


class RandomInvert(FactorLayer):
    """Invert some images in training: the largest value minus each pixel.

    Args:
        factor: the least and the largest probability; a number stands for the largest, and 0.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **kwargs)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return which images are inverted, `{"apply_inversion": (images,)}`."""
        return {"apply_inversion": self._chosen(images, self.factor, seed)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        inverted = transformation["apply_inversion"][:, None, None, None]
        return jnp.where(inverted, self.value_range[1] - images, images)


class Solarization(RangeLayer):
    """Add a random number to the pixels of each image in training, and invert those above a random threshold.

    Args:
        addition_factor: the least and the largest number that is added, as parts of 255; a number stands for 0 and
            itself.
        threshold_factor: the least and the largest threshold: a pair, or the largest alone.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        addition_factor: Factor = 0.0,
        threshold_factor: Factor = 0.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        *,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(value_range, seed, data_format=data_format, **kwargs)
        self.addition_factor = check_range("addition_factor", addition_factor, (0, 1), self.name)
        self.threshold_factor = check_range("threshold_factor", threshold_factor, (0, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return what is added, and where inversion begins, `{"additions": ..., "thresholds": ...}`."""
        # the lower limits count as pixels, as in Keras
        limits = {"additions": self.addition_factor, "thresholds": self.threshold_factor}
        return {name: self._uniform(images, (low, high * 255), seed, 1, 1, 1) for name, (low, high) in limits.items()}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        low, high = self.value_range
        results = jnp.clip((images - low) / (high - low) * 255 + transformation["additions"], 0, 255)
        results = jnp.where(results < transformation["thresholds"], results, 255 - results)
        return results / 255 * (high - low) + low
