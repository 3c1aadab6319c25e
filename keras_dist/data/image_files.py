"""Images in files, by Pillow: `load_img`, `save_img`, conversion from and to arrays, and resizing on the host."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pathlib
from typing import Any

import numpy as np

from keras_dist._support.arguments import check_option, check_sizes
from keras_dist._support.extras import import_extra
from keras_dist._support.located_warnings import warn
from keras_dist.config.settings import check_data_format
from keras_dist.errors import DataError, cause, shorten, unreadable
from keras_dist.files.drafts import replacing
from keras_dist.files.regular_files import read_regular

_MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}
CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
INTERPOLATIONS = ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5")


def _pillow(needed_for: str) -> Any:
    return import_extra("PIL.Image", "images", needed_for)


def load_img(
    path: Any,
    color_mode: str = "rgb",
    target_size: Any = None,
    interpolation: str = "nearest",
    keep_aspect_ratio: bool = False,
) -> Any:
    """Load an image file as an image of Pillow.

    Args:
        path: path of the file, or an `io.BytesIO` of its content.
        color_mode: `"rgb"`, `"rgba"` or `"grayscale"`.
        target_size: height and width; by default as in the file.
        interpolation: `"nearest"`, `"bilinear"`, `"bicubic"`, `"hamming"`, `"box"` or `"lanczos"`.
        keep_aspect_ratio: whether to crop the image to the new ratio, around its center.

    Raises:
        DataError: Pillow cannot read the file; names the file.
    """
    image = _pillow("load_img")
    check_option("color_mode", color_mode, tuple(_MODES))
    opened = _decoded(path, _MODES[color_mode])
    if target_size is None:
        return opened
    height, width = check_sizes("target_size", target_size, 2)
    names = ("nearest", "bilinear", "bicubic", "hamming", "box", "lanczos")
    resample = getattr(image.Resampling, check_option("interpolation", interpolation, names).upper())
    if opened.size == (width, height):
        return opened
    if not keep_aspect_ratio:
        return opened.resize((width, height), resample)
    old_width, old_height = opened.size
    part = min(old_width, old_height * width // height), min(old_height, old_width * height // width)
    left, top = (old_width - part[0]) // 2, (old_height - part[1]) // 2
    return opened.resize((width, height), resample, box=(left, top, left + part[0], top + part[1]))


def img_to_array(img: Any, data_format: str | None = None, dtype: Any = None) -> np.ndarray:
    """Convert an image of Pillow to an array (height, width, channels).

    Args:
        img: the image.
        data_format: `"channels_last"`, the default, or `"channels_first"` for (channels, height, width).
        dtype: dtype of the array; by default float32.
    """
    array = np.asarray(img, dtype or "float32")
    if array.ndim not in (2, 3):
        raise _no_image(f"shape {array.shape}")
    array = array[..., None] if array.ndim == 2 else array
    return np.moveaxis(array, -1, 0) if check_data_format(data_format, "img_to_array") == "channels_first" else array


def array_to_img(x: Any, data_format: str | None = None, scale: bool = True, dtype: Any = None) -> Any:
    """Convert an array (height, width, channels) to an image of Pillow.

    Args:
        x: an array with 1, 3 or 4 channels.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
        scale: whether to scale values to the range from 0 to 255.
        dtype: dtype of the computation; by default float32.
    """
    image = _pillow("array_to_img")
    array = np.asarray(x, dtype or "float32")
    if array.ndim != 3:
        raise _no_image(f"shape {array.shape}")
    if check_data_format(data_format, "array_to_img") == "channels_first":
        array = np.moveaxis(array, 0, -1)
    if scale:
        array = array - array.min()
        largest = array.max()
        array = (array / largest if largest != 0 else array) * 255
    if array.shape[-1] not in (1, 3, 4):
        raise _no_image(f"{array.shape[-1]} channels")
    if array.shape[-1] == 1:
        return image.fromarray(array[..., 0].astype("int32" if array.max() > 255 else "uint8"))
    return image.fromarray(array.astype("uint8"))


def save_img(
    path: Any, x: Any, data_format: str | None = None, file_format: str | None = None, scale: bool = True, **kwargs: Any
) -> None:
    """Save an array (height, width, channels) as an image file.

    Args:
        path: path of the file, or a file object.
        x, data_format, scale: as in `array_to_img`.
        file_format: such as `"png"`; by default the suffix of the file.
        **kwargs: arguments of `PIL.Image.Image.save`.
    """
    if file_format is None and isinstance(path, str | os.PathLike):
        file_format = pathlib.Path(path).suffix[1:].lower()
    file_format = "jpeg" if file_format == "jpg" else file_format
    img = array_to_img(x, data_format, scale)
    if img.mode == "RGBA" and file_format == "jpeg":
        warn("JPEG has no transparency: the image is written as RGB")
        img = img.convert("RGB")
    with replacing(path) if isinstance(path, str | os.PathLike) else contextlib.nullcontext(path) as place:
        img.save(place, format=file_format, **kwargs)


def read_image(
    path: str,
    color_mode: str,
    size: tuple[int, int],
    interpolation: str,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
) -> np.ndarray:
    """Load and resize an image file, as float32 (height, width, channels) from 0 to 255."""
    array = img_to_array(_decoded(path, _MODES[color_mode]))
    height, width = array.shape[:2]
    if crop_to_aspect_ratio:
        new_height = max(min(height, int(float(width * size[0]) / size[1])), 1)
        new_width = max(min(width, int(float(height * size[1]) / size[0])), 1)
        top, left = (height - new_height) // 2, (width - new_width) // 2
        array = array[top : top + new_height, left : left + new_width]
    elif pad_to_aspect_ratio:
        rows = max(int(float(width * size[0]) / size[1]) - height, 0) // 2
        columns = max(int(float(height * size[1]) / size[0]) - width, 0) // 2
        array = np.pad(array, ((rows, rows), (columns, columns), (0, 0)))
    for axis in (0, 1):
        array = _resized(array, axis, size[axis], interpolation)
    return array


def _decoded(path: Any, mode: str) -> Any:
    """Return the image of a file, or the first of several images."""
    image = _pillow("images in files")
    try:
        content = path if isinstance(path, io.BytesIO) else io.BytesIO(read_regular(pathlib.Path(path), True))
        opened = image.open(content)
        if mode != "L" or opened.mode not in ("L", "I;16", "I"):
            return opened if opened.mode == mode else opened.convert(mode)
        opened.load()
        return opened
    except Exception as error:  # Pillow raises errors of many kinds for broken files, and one for bombs
        given = cause(error)
        fix = "remove the file, or write it again as PNG, JPEG, GIF or BMP, complete and of a size that Pillow accepts"
        raise unreadable(error)(f"{shorten(str(path))} cannot be read as an image", given=given, fix=fix) from error


def _resized(array: np.ndarray, axis: int, size: int, interpolation: str) -> np.ndarray:
    """Resize one dim of an array by interpolation, as `jax.image`."""
    old = array.shape[axis]
    if old == size:
        return array
    places = (np.arange(size) + 0.5) * (old / size)
    if interpolation == "nearest":
        return array.take(np.floor(places).astype("int64"), axis)
    places = places - 0.5
    radius = {"bilinear": 1, "bicubic": 2, "lanczos3": 3, "lanczos5": 5}[interpolation]
    around = np.floor(places).astype("int64")[:, None] + np.arange(1 - radius, radius + 1)
    weights = _KERNELS[interpolation](np.abs(places[:, None] - around)) * ((around >= 0) & (around < old))
    weights = (weights / weights.sum(1, keepdims=True)).astype("float32")
    shape = [1] * array.ndim
    shape[axis] = size
    taken = (array.take(np.clip(near, 0, old - 1), axis) for near in around.T)
    found = (part * weight.reshape(shape) for part, weight in zip(taken, weights.T, strict=True))
    return functools.reduce(np.add, found)


def _cubic(x: np.ndarray) -> np.ndarray:
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x >= 2.0, 0.0, np.where(x >= 1.0, far, ((1.5 * x - 2.5) * x) * x + 1.0))


def _lanczos(radius: int) -> Any:
    return lambda x: np.where(x > radius, 0.0, np.sinc(x) * np.sinc(x / radius))


_KERNELS: dict[str, Any] = {
    "bilinear": lambda x: np.maximum(0.0, 1.0 - x),
    "bicubic": _cubic,
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _no_image(given: str) -> DataError:
    summary = "an image must have the shape (height, width, channels), with 1, 3 or 4 channels"
    return DataError(summary, given=given, fix="take one image of a batch: x[0]")
