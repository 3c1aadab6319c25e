"""`Resizing` and `CenterCrop`."""

from __future__ import annotations

from typing import Any, Unpack

import jax

from keras_dist._support.arguments import argument_error, check_number, check_option, check_size
from keras_dist.layers.preprocessing.image_layer import ImageLayer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms


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
        data_format: `"channels_last"`, the default, for images (height, width, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
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
        data_format: `"channels_last"`, the default, for images (height, width, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
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
