"""Layers that move the pixels of images at random: flips, affine and other transforms, and crops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import check_fraction, check_number, check_option, check_optional, check_size
from keras_dist.layers.preprocessing.image_layer import Factor, RandomImageLayer, check_range, check_value_range
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms

__all__ = ["RandomCrop", "RandomElasticTransform", "RandomFlip", "RandomPerspective", "RandomRotation", "RandomShear"]
__all__ += ["RandomTranslation", "RandomZoom"]


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


class RandomShear(WarpLayer):
    """Shear each image by a random factor in training.

    Args:
        x_factor: range of the shift of a row, as fractions of its distance from the first row; x stands for (-x, x).
        y_factor: the same for columns.
        interpolation, fill_mode, fill_value: as in `RandomTranslation`.
        data_format, seed, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        x_factor: Factor = 0.0,
        y_factor: Factor = 0.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.x_factor = check_range("x_factor", x_factor, (-1, 1), self.name)
        self.y_factor = check_range("y_factor", y_factor, (-1, 1), self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        sign = jnp.where(self._uniform(images, (0.0, 1.0), seed, 1) > 0.5, -1.0, 1.0)
        y, x = (self._uniform(images, limits, seed, 1) for limits in (self.y_factor, self.x_factor))
        return {"shear_factor": jnp.concatenate([x, y], axis=1) * sign}

    def _matrices(self, images: jax.Array, transformation: Any) -> jax.Array:
        return image_transforms.shear(*jnp.moveaxis(transformation["shear_factor"], 1, 0))


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


class RandomPerspective(WarpLayer):
    """Apply a perspective transform that moves the corners of random images in training.

    Args:
        factor: smallest and largest probability; a number x stands for (0, x).
        scale: largest displacement of corners, from 0 to 1, as a fraction of twice the distance from the first corner.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_value: value around an image.
        seed, data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        factor: Factor = 1.0,
        scale: float = 1.0,
        interpolation: str = "bilinear",
        fill_value: float = 0.0,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__("constant", interpolation, seed, fill_value, data_format, **kwargs)
        self.factor = check_range("factor", factor, (0, 1), self.name)
        self.scale = check_fraction("scale", scale, self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        chosen = self._chosen(images, self.factor, seed)
        limits = (-0.5 * self.scale, 0.5 * self.scale)
        moved = random.uniform((*chosen.shape, 4, 2), *limits, dtype=self.compute_dtype, seed=seed)
        bottom, right = (size - 1.0 for size in self._size(images))
        start = jnp.asarray([[0, 0], [right, 0], [0, bottom], [right, bottom]], moved.dtype)
        return {
            "apply_perspective": chosen,
            "start_points": jnp.broadcast_to(start, moved.shape),
            "end_points": start + start * moved,
        }

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        points = (jnp.asarray(transformation[name], "float32") for name in ("start_points", "end_points"))
        found = self._moved(images, image_transforms.perspective(*points), interpolation, is_affine=False)
        return jnp.where(transformation["apply_perspective"][:, None, None, None], found, images)


class RandomElasticTransform(WarpLayer):
    """Displace the pixels of random images smoothly in training.

    Args:
        factor: smallest and largest probability; a number x stands for (0, x).
        scale: smallest and largest strength, from 0 to 1, the same for a whole batch; a number x stands for (0, x). At
            1, displacements are about a tenth of the larger side.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_mode: values around an image: `"reflect"`, `"mirror"`, `"wrap"`, `"nearest"`, or `"constant"`.
        fill_value: value around an image for `fill_mode="constant"`.
        value_range, seed, data_format, **kwargs: as in `RandomBrightness`.

    Differs from Keras: segmentation masks are distorted like their images, and are not clipped.
    """

    fill_modes = image_transforms.FILL_MODES

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
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.factor = check_range("factor", factor, (0, 1), self.name)
        self.scale = check_range("scale", scale, (0, 1), self.name)
        self.value_range = check_value_range(value_range, self.name)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        if 0 in (self.scale[1], self.factor[1]):
            return None
        chosen = self._chosen(images, self.factor, seed)
        strength = random.uniform((), *self.scale, dtype=self.compute_dtype, seed=seed)
        key = seed.next() if isinstance(seed, random.SeedGenerator) else seed  # the same for images and masks
        return {"apply_transform": chosen, "distortion_factor": strength, "seed": key}

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
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
