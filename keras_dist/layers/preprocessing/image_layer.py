"""`ImageLayer` and `RandomImageLayer`, the bases of layers for images, `Resizing` and `CenterCrop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import argument_error, check_number, check_option, check_size, is_number
from keras_dist._support.types import PyTree
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms

Factor = float | Sequence[float]  # two limits, or a number from which both follow


class ImageLayer(Layer):
    """The base of layers that transform images. Subclasses define `transform_images`.

    Inputs are an image, a batch, or a dict of `"images"`, `"labels"` and `"segmentation_masks"`; masks are transformed
    like their images, and may lack the dim of channels.
    """

    moves_pixels: ClassVar[bool] = True
    """Whether segmentation masks are transformed."""

    def __init__(self, *, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(data_format, self.name)

    def call(self, data: PyTree, training: bool = True) -> PyTree:
        """Return the images, transformed in training."""
        given = self._arrays(data)
        is_one, masks = given["images"].ndim == 3, given.get("segmentation_masks")
        is_flat = masks is not None and masks.ndim < given["images"].ndim
        if masks is not None and is_flat:
            given["segmentation_masks"] = jnp.expand_dims(masks, self._channels)
        parts = {name: part[None] if is_one else part for name, part in given.items()}
        transformation = self.get_random_transformation(parts["images"], training=training)
        transforms = {
            "images": self.transform_images,
            "labels": self.transform_labels,
            "segmentation_masks": self.transform_segmentation_masks,
        }
        outputs = {name: transforms[name](part, transformation, training=training) for name, part in parts.items()}
        if is_flat:
            outputs["segmentation_masks"] = jnp.squeeze(outputs["segmentation_masks"], self._channels)
        if is_one:
            outputs = {name: part[0] for name, part in outputs.items()}
        return outputs if isinstance(data, Mapping) else outputs["images"]

    def _arrays(self, data: PyTree) -> dict[str, jax.Array]:
        parts = data if isinstance(data, Mapping) else {"images": data}
        unknown = sorted(set(parts) - {"images", "labels", "segmentation_masks"})
        images = parts.get("images")
        if unknown or images is None or jnp.ndim(images) not in (3, 4):
            summary = f"layer {self.name!r} takes images of rank 3 or 4, or a dict of images, labels and masks"
            given = f"a dict of {sorted(parts)}" if unknown or images is None else f"shape {jnp.shape(images)}"
            fix = "keys are images, labels, segmentation_masks; transform bounding boxes where the data are read"
            raise ModelError(summary, given=given, fix=fix)
        arrays = {name: jnp.asarray(part) for name, part in parts.items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        if jnp.ndim(images) == 4 and len({shape[:1] for shape in shapes.values()}) > 1:
            given = ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
            fix = "batch images and what belongs to them together"
            raise ModelError(f"layer {self.name!r} gets batches of different sizes", given=given, fix=fix)
        return arrays

    def get_random_transformation(self, data: jax.Array, training: bool = True, seed: Any = None) -> Any:
        """Return the `transformation` argument of the methods below, shared by images, labels and masks."""
        return None

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        """Transform a batch of images. Subclasses define it."""
        raise NotImplementedError

    def transform_labels(self, labels: PyTree, transformation: Any = None, training: bool = True) -> PyTree:
        """Return the labels, transformed like their images; by default unchanged."""
        return labels

    def transform_segmentation_masks(
        self, segmentation_masks: jax.Array, transformation: Any = None, training: bool = True
    ) -> jax.Array:
        """Return masks, transformed like their images."""
        if not self.moves_pixels:
            return segmentation_masks
        return self.transform_images(segmentation_masks, transformation, training)

    def _size(self, images: jax.Array) -> tuple[int, int]:
        return image_transforms.height_and_width(images, self.data_format)

    @property
    def _axes(self) -> tuple[int, int]:
        return image_transforms.image_axes(self.data_format)

    @property
    def _channels(self) -> int:
        """The dim of channels, counted from the end."""
        return -1 if self.data_format == "channels_last" else -3


class RandomImageLayer(ImageLayer):
    """The base of layers that transform images at random in training. Subclasses define `_draw` and `_transform`.

    Random numbers depend on the seed and the position in the global batch, not on the mesh.
    """

    interpolation = "bilinear"

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self.generator = random.SeedGenerator(seed)

    def get_random_transformation(self, data: PyTree, training: bool = True, seed: Any = None) -> Any:
        """Draw the transformation of images for `transform_images`; None outside of training.

        Args:
            data: an image, a batch, or a dict with them.
            training: whether the layer acts.
            seed: see `random.uniform`; by default the layer's own generator.
        """
        if not training:
            return None
        images = data["images"] if isinstance(data, Mapping) else data
        return self._draw(images[None] if images.ndim == 3 else images, self.generator if seed is None else seed)

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        images = jnp.asarray(images, self.compute_dtype)
        if not training or transformation is None:
            return images
        return self._each(images, transformation, self.interpolation).astype(self.compute_dtype)

    def transform_segmentation_masks(
        self, segmentation_masks: jax.Array, transformation: Any = None, training: bool = True
    ) -> jax.Array:
        """Return masks, transformed like their images without interpolation."""
        if not training or transformation is None or not self.moves_pixels:
            return segmentation_masks
        return self._each(segmentation_masks, transformation, "nearest")

    def _each(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        """Transform a batch of images, or one image from a direct call of `transform_images`."""
        if jnp.ndim(images) == 3:
            return self._transform(images[None], transformation, interpolation)[0]
        return self._transform(images, transformation, interpolation)

    def _draw(self, images: jax.Array, seed: Any) -> Any:
        raise NotImplementedError

    def _transform(self, images: jax.Array, transformation: Any, interpolation: str) -> jax.Array:
        raise NotImplementedError

    def _uniform(self, images: jax.Array, limits: tuple[float, float], seed: Any, *sizes: int) -> jax.Array:
        return random.uniform((images.shape[0], *sizes), *limits, seed=seed)


def check_range(
    argument: str, value: Any, bounds: tuple[float, float], layer: str, *, open_below: bool = False
) -> tuple[float, float]:
    """Return `value` as an ascending pair within `bounds`; a number x stands for (-x, x), cut to the bounds."""
    low, high = bounds
    pair = tuple(value) if isinstance(value, list | tuple) else (value,)
    fits = all(is_number(each) and low <= each <= high and not (open_below and each == low) for each in pair)
    if fits and len(pair) == 2:
        return float(min(pair)), float(max(pair))
    if fits and len(pair) == 1:
        return float(max(-abs(pair[0]), low)), float(abs(pair[0]))
    expected = f"a number, or two, {'above' if open_below else 'of at least'} {low} and at most {high}"
    raise argument_error(argument, value, expected, layer=layer, example=0.2)


def check_value_range(value: Any, layer: str) -> tuple[float, float]:
    """Return the smallest and the largest value of pixels."""
    if isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value)) and value[0] != value[1]:
        return float(min(value)), float(max(value))
    raise argument_error("value_range", value, "two different numbers", layer=layer, example=(0, 255))


class Resizing(ImageLayer):
    """Resize images; integers stay integers.

    Args:
        height: the new height [pixels].
        width: the new width [pixels].
        interpolation: `"bilinear"`, `"nearest"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        crop_to_aspect_ratio: whether to resize only the largest centered part with the new aspect ratio.
        pad_to_aspect_ratio: whether to pad images to the new aspect ratio.
        fill_mode: must be `"constant"`.
        fill_value: value of the padding.
        antialias: whether smaller images are averages of all pixels.
        data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format=data_format, **kwargs)
        self.height = check_size("height", height, self.name)
        self.width = check_size("width", width, self.name)
        options = image_transforms.RESIZE_INTERPOLATIONS
        self.interpolation = check_option("interpolation", interpolation, options, self.name)
        self.crop_to_aspect_ratio, self.pad_to_aspect_ratio = bool(crop_to_aspect_ratio), bool(pad_to_aspect_ratio)
        self.fill_mode = check_option("fill_mode", fill_mode, ("constant",), self.name)
        self.fill_value = check_number("fill_value", fill_value, layer=self.name)
        self.antialias = bool(antialias)
        if crop_to_aspect_ratio and pad_to_aspect_ratio:
            expected = "False with crop_to_aspect_ratio=True"
            raise argument_error("pad_to_aspect_ratio", True, expected, layer=self.name, example=False)

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        return self._resized(images, self.interpolation)

    def transform_segmentation_masks(
        self, segmentation_masks: jax.Array, transformation: Any = None, training: bool = True
    ) -> jax.Array:
        """Return resized masks, without interpolation."""
        return self._resized(segmentation_masks, "nearest")

    def _resized(self, images: jax.Array, interpolation: str) -> jax.Array:
        size, ratios = (self.height, self.width), (self.crop_to_aspect_ratio, self.pad_to_aspect_ratio)
        options = (interpolation, self.antialias, *ratios, self.fill_value, self.data_format)
        return image_transforms.resize(images, size, *options, keeps_dtype=True)


class CenterCrop(ImageLayer):
    """Crop the centre of images; of smaller images, resize the largest centered part with the new aspect ratio.

    Args:
        height: height of the crop [pixels].
        width: width of the crop [pixels].
        data_format, **kwargs: as in `RandomBrightness`.
    """

    def __init__(
        self, height: int, width: int, data_format: str | None = None, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__(data_format=data_format, **kwargs)
        self.height = check_size("height", height, self.name)
        self.width = check_size("width", width, self.name)

    def transform_images(self, images: jax.Array, transformation: Any = None, training: bool = True) -> jax.Array:
        images = images.astype(self.compute_dtype)
        height, width = self._size(images)
        if height >= self.height and width >= self.width:
            top, left = (height - self.height) // 2, (width - self.width) // 2
            return image_transforms.crop(images, top, left, self.height, self.width, self.data_format)
        size = (self.height, self.width)
        return image_transforms.resize(images, size, crop_to_aspect_ratio=True, data_format=self.data_format)
