"""Layers that change the colours of images, or filter images, at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import argument_error, check_fraction
from keras_dist.config.settings import epsilon
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer, check_range, check_value_range
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms

__all__ = ["RandomBrightness", "RandomColorDegeneration", "RandomColorJitter", "RandomContrast", "RandomGaussianBlur"]
__all__ += ["RandomGrayscale", "RandomHue", "RandomInvert", "RandomPosterization", "RandomSaturation"]
__all__ += ["RandomSharpness", "Solarization"]


class ColorLayer(RandomImageLayer):
    """The base of layers that change colours, but not masks."""

    moves_pixels = False

    def _gray(self, images: jax.Array) -> jax.Array:
        self._check_colors(images, (1, 3))
        return image_transforms.rgb_to_grayscale(images, self.data_format)


class RangeLayer(ColorLayer):
    """The base of layers with a range of values, to which results are clipped."""

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


class RandomColorDegeneration(FactorLayer):
    """Blend each image with its gray version by a random factor in training.

    Args:
        factor: smallest and largest factor; 1 gives gray images.
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    factor_bounds = (-1, 1)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        return {"factor": self._uniform(images, self.factor, seed, 1, 1, 1)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return self._clipped(images + transformation["factor"] * (self._gray(images) - images))


class RandomGrayscale(ColorLayer):
    """Convert random images to gray in training; they keep three channels.

    Args:
        factor: probability for each image.
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
        return self._uniform(images, (0.0, 1.0), seed, 1, 1, 1) < self.factor

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return jnp.where(transformation, self._gray(images), images)


class RandomInvert(FactorLayer):
    """Invert random images in training: the largest value minus each pixel.

    Args:
        factor: smallest and largest probability; a number x stands for (0, x).
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
        return {"apply_inversion": self._chosen(images, self.factor, seed)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        inverted = transformation["apply_inversion"][:, None, None, None]
        return jnp.where(inverted, self.value_range[1] - images, images)


class Solarization(RangeLayer):
    """Add a random number to the pixels of each image, and invert pixels above a random threshold, in training.

    Args:
        addition_factor: smallest and largest number to add, as fractions of 255; a number x stands for (0, x).
        threshold_factor: smallest and largest threshold, as fractions of 255; a number x stands for (0, x).
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
        # lower limits are not multiplied by 255, as in Keras
        limits = {"additions": self.addition_factor, "thresholds": self.threshold_factor}
        return {name: self._uniform(images, (low, high * 255), seed, 1, 1, 1) for name, (low, high) in limits.items()}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        low, high = self.value_range
        results = jnp.clip((images - low) / (high - low) * 255 + transformation["additions"], 0, 255)
        results = jnp.where(results < transformation["thresholds"], results, 255 - results)
        return results / 255 * (high - low) + low


class HueLayer(FactorLayer):
    """The base of layers that change hue, saturation or value."""

    def _in_hsv(self, images: jax.Array, change: Callable[..., Sequence[jax.Array]]) -> jax.Array:
        """Apply a function of `(hue, saturation, value)` to RGB images."""
        self._check_colors(images)
        hsv = image_transforms.rgb_to_hsv(jnp.moveaxis(images, self._channels, -1))
        changed = jnp.stack(change(*jnp.unstack(hsv, axis=-1)), -1)
        return jnp.moveaxis(image_transforms.hsv_to_rgb(changed), -1, self._channels)


class RandomHue(HueLayer):
    """Rotate the hue of each image by a random angle in training.

    Args:
        factor: smallest and largest angle, as fractions of half a turn; x stands for (0, x). The sign is random.
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def _draw(self, images: jax.Array, seed: Any) -> Any:
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
        factor: smallest and largest f, from 0 to 1, for a factor f / (1 - f): 0 gives gray images, 0.5 unchanged
            images. A number x stands for (-x, x), as in Keras.
        value_range: smallest and largest value of pixels, to which saturations are clipped, as in Keras.
        data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    factor_bounds = (-1, 1)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        share = self._uniform(images, self.factor, seed)
        return {"factor": share / (1 - share + epsilon())}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        factor = transformation["factor"].astype(images.dtype)[:, None, None]
        return self._in_hsv(images, lambda hue, saturation, value: (hue, self._clipped(saturation * factor), value))


class RandomColorJitter(RangeLayer):
    """Change brightness, contrast, saturation and hue of each image at random in training, in this order.

    Args:
        brightness_factor: `factor` of `RandomBrightness`; None for no change.
        contrast_factor: `factor` of `RandomContrast`; None for no change.
        saturation_factor: `factor` of `RandomSaturation`; None for no change.
        hue_factor: `factor` of `RandomHue`; None for no change.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.
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
        return [step.get_random_transformation(images, seed=seed) for step in self.steps]

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        for step, numbers in zip(self.steps, transformation, strict=True):
            images = step.transform_images(images, numbers)
        return images


class RandomSharpness(FactorLayer):
    """Sharpen or blur each image by a random factor in training.

    Args:
        factor: smallest and largest factor; a number x stands for (0, x). 0 blurs, 0.5 keeps, 1 sharpens images.
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        return {"factor": self._uniform(images, self.factor, seed)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        kernel = jnp.full((3, 3), 1 / 13, images.dtype).at[1, 1].set(5 / 13)
        factor = (transformation["factor"] * 2).astype(images.dtype)[:, None, None, None]
        return self._clipped(images + (1 - factor) * (self._filtered(images, kernel) - images))


class RandomGaussianBlur(FactorLayer):
    """Blur random images by a Gaussian filter in training.

    Args:
        factor: smallest and largest probability; a number x stands for (0, x).
        kernel_size: odd size of the filter [pixels], or a pair (width, height).
        sigma: smallest and largest standard deviation, from 0 to 1 [pixels]; a number x stands for (0, x).
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        kernel_size: int | Sequence[int] = 3,
        sigma: Factor = 1.0,
        value_range: Sequence[float] = (0, 255),
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(factor, value_range, data_format, seed, **kwargs)
        sizes: tuple[Any, ...] = tuple(kernel_size) if isinstance(kernel_size, list | tuple) else (kernel_size,) * 2
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 and size % 2 for size in sizes):
            raise argument_error("kernel_size", kernel_size, "an odd number, or two", layer=self.name, example=3)
        self.kernel_size = sizes
        self.sigma = check_range("sigma", sigma, (0, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        chosen = self._chosen(images, self.factor, seed)
        sigma = random.uniform((2,), *self.sigma, dtype=self.compute_dtype, seed=seed) + 1e-6
        return {"should_apply_blur": chosen, "blur_factor": sigma}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        weights = [
            image_transforms.gaussian(size, width, images.dtype)
            for size, width in zip(self.kernel_size, transformation["blur_factor"], strict=True)
        ]
        blurred = self._filtered(images, jnp.outer(weights[1], weights[0]))
        return self._clipped(jnp.where(transformation["should_apply_blur"][:, None, None, None], blurred, images))


class RandomPosterization(FactorLayer):
    """Reduce the pixels of each image to a random number of bits in training.

    Args:
        factor: smallest number of bits and upper bound (exclusive), from 1 to 8; a number x stands for (1, x).
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    factor_bounds = (1, 8)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        rows = images.shape[0]
        low, high = (int(limit) for limit in self.factor)
        same = jnp.full((rows,), low, "uint8")
        return {"shift_factor": 8 - (same if low == high else random.randint((rows,), low, high, "uint8", seed))}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        low, high = self.value_range
        shift = transformation["shift_factor"][:, None, None, None]
        whole = ((images - low) / (high - low) * 255 if self.value_range != (0, 255) else images).astype("uint8")
        kept = jnp.left_shift(jnp.right_shift(whole, shift), shift).astype(images.dtype)
        return kept / 255 * (high - low) + low if self.value_range != (0, 255) else kept
