"""`RandomElasticTransform`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_number, check_option
from keras_dist.layers.preprocessing.image_layer import (
    Factor,
    RandomImageLayer,
    check_range,
    check_value_range,
)
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms


class RandomElasticTransform(RandomImageLayer):
    """Distort some images in training, as if they were on rubber: pixels are moved, neighbours by nearly the same way.

    Args:
        factor: the least and the largest probability; a number stands for 0 and itself.
        scale: how strongly at least and at most, from 0 to 1, the same for a whole batch; a number stands for 0 and
            itself. At 1, ways are of the order of a tenth of the larger side.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_mode: values around an image: `"reflect"`, `"mirror"`, `"wrap"`, `"nearest"`, or `"constant"`.
        fill_value: the value around an image for `fill_mode="constant"`.
        value_range: the least and the largest value of pixels, to which images are clipped.
        seed, data_format, **kwargs: as in `RandomBrightness`.

    Differs from Keras: segmentation masks are distorted as their images, and are not clipped.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        scale: Factor = 1.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.factor = check_range("factor", factor, (0, 1), self.name)
        self.scale = check_range("scale", scale, (0, 1), self.name)
        options = image_transforms.AFFINE_INTERPOLATIONS
        self.interpolation = check_option("interpolation", interpolation, options, self.name)
        self.fill_mode = check_option("fill_mode", fill_mode, image_transforms.FILL_MODES, self.name)
        self.fill_value = check_number("fill_value", fill_value, layer=self.name)
        self.value_range = check_value_range(value_range, self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        """Return which images change, how strongly, and the seed of the ways of pixels; None, if none can change."""
        if 0 in (self.scale[1], self.factor[1]):
            return None
        chosen = self._chosen(images, self.factor, seed)
        strength = random.uniform((), *self.scale, dtype=self.compute_dtype, seed=seed)
        key = seed.next() if isinstance(seed, random.SeedGenerator) else seed  # one for images and their masks
        return {"apply_transform": chosen, "distortion_factor": strength, "seed": key}

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        """Return the images, in training distorted and clipped."""
        found = super().transform_images(images, transformation, training)
        return found if not training or transformation is None else jnp.clip(found, *self.value_range)

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        rows = jnp.moveaxis(images, self._channels, -1)
        noise = random.normal(rows.shape[:3], dtype=self.compute_dtype, seed=transformation["seed"])
        height, width = self._size(images)
        alpha, sigma = 0.1 * max(height, width), 0.05 * min(height, width)
        strength = transformation["distortion_factor"]
        options = (interpolation, self.fill_mode, self.fill_value)
        reach = sigma * self.scale[1]
        moved = image_transforms.elastic_transform(rows, noise, alpha * strength, sigma * strength, reach, *options)
        moved = jnp.moveaxis(moved, -1, self._channels)
        return jnp.where(transformation["apply_transform"][:, None, None, None], moved, images)
