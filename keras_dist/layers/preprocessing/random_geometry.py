"""Layers that move the pixels of images at random: flips, affine and other transforms, and crops."""

from __future__ import annotations

import math
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_number, check_option, check_optional, check_size
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer, check_range
from keras_dist.ops import image_transforms

__all__ = ["RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom"]


class RandomFlip(RandomImageLayer):
    """Flip each image with probability 0.5 in training.

    Args:
        mode: `"horizontal"`, `"vertical"`, or `"horizontal_and_vertical"` for both together.
        seed, data_format, **kwargs: as in `RandomBrightness`.

    Source: `keras.layers.RandomFlip`, which flips the same images for the same seed.
    """

    def __init__(
        self,
        mode: str = "horizontal_and_vertical",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.mode = check_option("mode", mode, ("horizontal", "vertical", "horizontal_and_vertical"), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        return {"flips": self._uniform(images, (0.0, 1.0), seed, 1, 1, 1) <= 0.5}

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        names = ("vertical", "horizontal")
        axes = tuple(axis for axis, name in zip(self._axes, names, strict=True) if name in self.mode)
        return jnp.where(transformation["flips"], jnp.flip(images, axes), images)


class WarpLayer(RandomImageLayer):
    """The base of layers that sample images between pixels. Affine ones define `_matrices`, others `_transform`."""

    fill_modes: tuple[str, ...] = ("reflect", "wrap", "constant", "nearest")

    def __init__(
        self,
        fill_mode: str,
        /,  # not every layer takes it by name
        interpolation: str,
        seed: int | None,
        fill_value: float,
        data_format: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format=data_format, **kwargs)
        self.fill_mode = check_option("fill_mode", fill_mode, self.fill_modes, self.name)
        options = image_transforms.AFFINE_INTERPOLATIONS
        self.interpolation = check_option("interpolation", interpolation, options, self.name)
        self.fill_value = check_number("fill_value", fill_value, layer=self.name)

    def _matrices(self, images: jax.Array, transformation: Any) -> jax.Array:
        raise NotImplementedError

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        return self._moved(images, self._matrices(images, transformation), interpolation)

    def _moved(self, images: jax.Array, matrices: jax.Array, interpolation: str, is_affine: bool = True) -> jax.Array:
        options = (interpolation, self.fill_mode, self.fill_value, self.data_format, is_affine)
        return image_transforms.affine_transform(images, matrices, *options)


class RandomRotation(WarpLayer):
    """Rotate each image by a random angle in training.

    Args:
        factor: smallest and largest angle, counter-clockwise, as fractions of a turn; a number x stands for (-x, x).
        fill_mode, interpolation, fill_value: as in `RandomTranslation`.
        seed, data_format, **kwargs: as in `RandomBrightness`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import layers
        >>> image = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")[..., None]
        >>> layers.RandomRotation((0.25, 0.25))(image)[..., 0].round(4).tolist()
        [[2.0, 4.0], [1.0, 3.0]]
    """

    def __init__(
        self,
        factor: Factor,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.factor = check_range("factor", factor, (-1, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        low, high = self.factor
        return {"angle": self._uniform(images, (low * 360.0, high * 360.0), seed)}

    def _matrices(self, images: jax.Array, transformation: Any) -> jax.Array:
        return image_transforms.rotation(transformation["angle"] * (math.pi / 180.0), *self._size(images))


class RandomZoom(WarpLayer):
    """Zoom each image about its centre by a random factor in training.

    Args:
        height_factor: range of the change of the visible height: 0.2 shows 20 % more; a number x stands for (-x, x).
        width_factor: the same for the width; by default the aspect ratio is kept.
        fill_mode, interpolation, fill_value: as in `RandomTranslation`.
        seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        height_factor: Factor,
        width_factor: Factor | None = None,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        options: dict[str, Any] = {"bounds": (-1, 1), "layer": self.name, "open_below": True}
        self.height_factor = check_range("height_factor", height_factor, **options)
        self.width_factor = check_optional(check_range, "width_factor", width_factor, **options)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        low, high = self.height_factor
        height = width = self._uniform(images, (1.0 + low, 1.0 + high), seed, 1)
        if self.width_factor is not None:
            low, high = self.width_factor
            width = self._uniform(images, (1.0 + low, 1.0 + high), seed, 1)
        return {"height_zoom": height, "width_zoom": width}

    def _matrices(self, images: jax.Array, transformation: Any) -> jax.Array:
        width, height = transformation["width_zoom"][:, 0], transformation["height_zoom"][:, 0]
        return image_transforms.zoom(width, height, *self._size(images))


class RandomTranslation(WarpLayer):
    """Translate each image by a random distance in training.

    Args:
        height_factor: range of the distance downwards, as fractions of the height; a number x stands for (-x, x).
        width_factor: the same to the right, as fractions of the width.
        fill_mode: values around an image: `"reflect"` (d c b a | a b c d | d c b a), `"wrap"` (a b c d | a b c d),
            `"nearest"` (a a a a | a b c d | d d d d), or `"constant"`, the `fill_value`.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_value: the value around an image for `fill_mode="constant"`.
        seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        height_factor: Factor,
        width_factor: Factor,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.height_factor = check_range("height_factor", height_factor, (-1, 1), self.name)
        self.width_factor = check_range("width_factor", width_factor, (-1, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        height, width = self._size(images)
        down = self._uniform(images, self.height_factor, seed, 1) * height
        right = self._uniform(images, self.width_factor, seed, 1) * width
        return {"translations": jnp.concatenate([right, down], axis=1)}

    def _matrices(self, images: jax.Array, transformation: Any) -> jax.Array:
        return image_transforms.translation(*jnp.moveaxis(transformation["translations"], 1, 0))


class RandomCrop(RandomImageLayer):
    """Crop images at a random position, the same for a whole batch, in training.

    Of images that are not larger in both dims, the largest centered part with the aspect ratio of the crop is resized.

    Args:
        height: height of the crop [pixels].
        width: width of the crop [pixels].
        name: see `Layer`.
        seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        height: int,
        width: int,
        seed: int | None = None,
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format=data_format, name=name, **kwargs)
        self.height = check_size("height", height, self.name)
        self.width = check_size("width", width, self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        height, width = self._size(images)
        if not (height > self.height and width > self.width):
            return image_transforms.largest_like(height, width, (self.height, self.width))[:2]
        larger = (height - self.height + 1, width - self.width + 1)
        return tuple(random.uniform((), 0.0, float(high), seed=seed).astype("int32") for high in larger)

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        sizes = zip(self._size(images), transformation, (self.height, self.width), strict=True)
        # a traced start was drawn so that the crop fits
        parts = [min(new, old - start) if isinstance(start, int) else new for old, start, new in sizes]
        top, left = transformation
        images = image_transforms.crop(images, top, left, parts[0], parts[1], self.data_format)
        if parts == [self.height, self.width]:
            return images
        return image_transforms.resize(images, (self.height, self.width), data_format=self.data_format)
