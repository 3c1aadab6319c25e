"""Layers that filter images: `RandomSharpness`, `RandomGaussianBlur`; and `RandomPosterization`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import argument_error
from keras_dist.layers.preprocessing.image_layer import Factor, check_range
from keras_dist.layers.preprocessing.random_colors import FactorLayer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_filters


class RandomSharpness(FactorLayer):
    """Sharpen or blur each image by a random factor in training.

    Args:
        factor: the least and the largest factor, from 0 to 1; a number stands for 0 and itself. 0.5 leaves images as
            they are, 0 blurs them, 1 sharpens them.
        value_range, data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return the factors, `{"factor": (images,)}`."""
        return {"factor": self._uniform(images, self.factor, seed)}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        kernel = jnp.full((3, 3), 1 / 13, images.dtype).at[1, 1].set(5 / 13)
        factor = (transformation["factor"] * 2).astype(images.dtype)[:, None, None, None]
        return self._clipped(images + (1 - factor) * (self._filtered(images, kernel) - images))


class RandomGaussianBlur(FactorLayer):
    """Blur some images by a Gaussian in training.

    Args:
        factor: the least and the largest probability; a number stands for 0 and itself.
        kernel_size: an odd number of pixels, or one for the width and one for the height.
        sigma: the least and the largest standard deviation, from 0 to 1 [pixels]; a number stands for 0 and itself.
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
        sizes: tuple[Any, ...] = (
            tuple(kernel_size) if isinstance(kernel_size, list | tuple) else (kernel_size, kernel_size)
        )
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 and size % 2 for size in sizes):
            raise argument_error("kernel_size", kernel_size, "an odd number, or two", layer=self.name, example=3)
        self.kernel_size = sizes
        self.sigma = check_range("sigma", sigma, (0, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return which images are blurred and how, `{"should_apply_blur": (images,), "blur_factor": (2,)}`."""
        chosen = self._chosen(images, self.factor, seed)
        sigma = random.uniform((2,), *self.sigma, dtype=self.compute_dtype, seed=seed) + 1e-6
        return {"should_apply_blur": chosen, "blur_factor": sigma}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        weights = [
            image_filters.gaussian(size, width, images.dtype)
            for size, width in zip(self.kernel_size, transformation["blur_factor"], strict=True)
        ]
        blurred = self._filtered(images, jnp.outer(weights[1], weights[0]))
        return self._clipped(jnp.where(transformation["should_apply_blur"][:, None, None, None], blurred, images))


class RandomPosterization(FactorLayer):
    """Keep a random number of bits of the pixels of each image in training, of eight.

    Args:
        factor: the least number of bits, and one above the largest, from 1 to 8; equal ones for so many. A number
            stands for 1 and itself.
        value_range: the least and the largest value of pixels, which become 0 and 255 and back.
        data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    factor_bounds = (1, 8)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return how many bits are dropped, `{"shift_factor": (images,)}`."""
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
