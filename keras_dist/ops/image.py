"""Operations on images (height, width, channels), or batches of them; `ops.patches` extracts patches.

Source: names, arguments and defaults as in `keras.ops.image`.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.ndimage

from keras_dist import random
from keras_dist._support.arguments import argument_error, check_option, check_sizes, shapes
from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError
from keras_dist.ops import image_transforms
from keras_dist.ops.operation import as_array, floating, names_in, operation
from keras_dist.ops.patches import extract_patches as extract_patches
from keras_dist.ops.patches import extract_patches_3d as extract_patches_3d

_METHODS = ("linear", "bilinear", "trilinear", "cubic", "bicubic", "tricubic", "lanczos3", "lanczos5")


@dataclasses.dataclass(frozen=True)
class _Images:
    """Images as a batch (batch, height, width, channels), and the form in which they were given."""

    values: jax.Array
    is_batch: bool
    is_last: bool

    @classmethod
    def of(cls, name: str, images: ArrayLike, data_format: str | None) -> _Images:
        array = as_array(images)
        if array.ndim not in (3, 4):
            summary = f"{name} takes images (height, width, channels), or (batch, height, width, channels)"
            fix = "ops.expand_dims(images, -1) for images without channels"
            raise ModelError(summary, given=f"shape {array.shape}", fix=fix)
        is_last = check_data_format(data_format, name) == "channels_last"
        batch = array if array.ndim == 4 else array[None]
        return cls(batch if is_last else jnp.moveaxis(batch, 1, -1), array.ndim == 4, is_last)

    def restored(self, values: jax.Array) -> jax.Array:
        """Return `values`, a batch with channels last, in the form in which the images were given."""
        values = values if self.is_last else jnp.moveaxis(values, -1, 1)
        return values if self.is_batch else values[0]


@operation
def rgb_to_grayscale(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Convert RGB images to gray images with one channel; images with one channel stay as they are."""
    given = _Images.of("rgb_to_grayscale", images, data_format)
    values = given.values
    if values.shape[-1] == 1:
        return given.restored(values)
    _check_channels("rgb_to_grayscale", values, (1, 3))
    weights = jnp.asarray([0.2989, 0.5870, 0.1140], floating(values).dtype)
    return given.restored((floating(values) @ weights)[..., None].astype(values.dtype))


@operation
def rgb_to_hsv(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Convert RGB images, floats from 0 to 1, to hue, saturation and value, from 0 to 1."""
    given = _Images.of("rgb_to_hsv", images, data_format)
    return given.restored(image_transforms.rgb_to_hsv(_float_channels("rgb_to_hsv", given)))


@operation
def hsv_to_rgb(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Convert images of hue, saturation and value, floats from 0 to 1, to RGB."""
    given = _Images.of("hsv_to_rgb", images, data_format)
    return given.restored(image_transforms.hsv_to_rgb(_float_channels("hsv_to_rgb", given)))


@operation
def resize(
    images: ArrayLike,
    size: Sequence[int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str | None = None,
) -> jax.Array:
    """Resize images; the element type stays.

    Args:
        images: (height, width, channels), or a batch of them.
        size: the new height and width.
        interpolation: `"bilinear"`, `"nearest"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        antialias: whether smaller images are averages of all pixels.
        crop_to_aspect_ratio: whether images of another aspect ratio are cropped, instead of stretched.
        pad_to_aspect_ratio: whether images of another aspect ratio are padded.
        fill_mode: must be `"constant"`.
        fill_value: value of the padding.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Raises:
        ModelError: an argument has an unknown value, or images would be cropped and padded.
    """
    given = _Images.of("resize", images, data_format)
    height, width = check_sizes("size", size, 2, "resize")
    method = check_option("interpolation", interpolation, image_transforms.RESIZE_INTERPOLATIONS)
    check_option("fill_mode", fill_mode, ("constant",))
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        expected = "False with crop_to_aspect_ratio=True"
        raise argument_error("pad_to_aspect_ratio", True, expected, example=False)
    options = (method, antialias, crop_to_aspect_ratio, pad_to_aspect_ratio, fill_value)
    return given.restored(image_transforms.resize(given.values, (height, width), *options, keeps_dtype=True))


@operation
def pad_images(
    images: ArrayLike,
    top_padding: int | None = None,
    left_padding: int | None = None,
    bottom_padding: int | None = None,
    right_padding: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> jax.Array:
    """Pad images with zeros. For each dim, give two of the two paddings and the target size.

    Args:
        top_padding: number of rows above.
        left_padding: number of columns to the left.
        bottom_padding: number of rows below.
        right_padding: number of columns to the right.
        target_height: the new height.
        target_width: the new width.
        images, data_format: as in `resize`.

    Raises:
        ModelError: not exactly two are given, or one would be negative.
    """
    given = _Images.of("pad_images", images, data_format)
    rows, columns = given.values.shape[1:3]
    top, bottom = _ends("pad_images", "height", top_padding, bottom_padding, target_height, -rows)
    left, right = _ends("pad_images", "width", left_padding, right_padding, target_width, -columns)
    return given.restored(jnp.pad(given.values, [(0, 0), (top, bottom), (left, right), (0, 0)]))


@operation
def crop_images(
    images: ArrayLike,
    top_cropping: int | None = None,
    left_cropping: int | None = None,
    bottom_cropping: int | None = None,
    right_cropping: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> jax.Array:
    """Crop images to `target_height` and `target_width`.

    For each dim give two of: leading cropping, trailing cropping, target size.

    Raises:
        ModelError: not exactly two are given, or one would be negative.
    """
    given = _Images.of("crop_images", images, data_format)
    rows, columns = given.values.shape[1:3]
    top, bottom = _ends("crop_images", "height", top_cropping, bottom_cropping, target_height, rows)
    left, right = _ends("crop_images", "width", left_cropping, right_cropping, target_width, columns)
    return given.restored(given.values[:, top : rows - bottom, left : columns - right])


def _ends(name: str, dim: str, before: int | None, after: int | None, target: int | None, size: int) -> tuple[int, int]:
    """Return how much to crop before and after a dim of `size`; for a negative size, how much to pad."""
    expected = f"two of what is before, what is after, and target_{dim}, and none of the three below 0"
    fix = f"leave target_{dim} out where both ends are given"
    given = f"{before}, {after} and target_{dim}={target} for a {dim} of {abs(size)}"
    if [before, after, target].count(None) != 1:
        raise ModelError(f"{name}: the {dim} is not determined", given=given, expected=expected, fix=fix)
    changed = None if target is None else (size - target if size >= 0 else target + size)
    first: Any = changed - after if before is None and changed is not None and after is not None else before
    last: Any = changed - first if after is None and changed is not None else after
    if min(first, last, size - first - last if size >= 0 else 0) < 0:
        raise ModelError(f"{name}: the {dim} does not fit", given=given, expected=expected, fix=fix)
    return first, last


@operation
def gaussian_blur(
    images: ArrayLike,
    kernel_size: Sequence[int] = (3, 3),
    sigma: Sequence[float] = (1.0, 1.0),
    data_format: str | None = None,
) -> jax.Array:
    """Blur images by a Gaussian filter.

    Args:
        images: floats (height, width, channels), or a batch of them.
        kernel_size: width and height of the filter [pixels].
        sigma: standard deviations along width and height [pixels].
        data_format: as in `resize`.
    """
    given = _Images.of("gaussian_blur", images, data_format)
    pairs = zip(kernel_size, sigma, strict=True)
    columns, rows = (image_transforms.gaussian(size, width, given.values.dtype) for size, width in pairs)
    return given.restored(image_transforms.filtered(given.values, jnp.outer(rows, columns), "SAME"))


@operation
def sobel_edges(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Return the Sobel derivatives of images along height and width, as a last dim of size 2."""
    given = _Images.of("sobel_edges", images, data_format)
    to_right = jnp.asarray([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], given.values.dtype)
    kernels = (to_right.T, to_right)
    return jnp.stack([given.restored(image_transforms.filtered(given.values, k, "SAME")) for k in kernels], -1)


@operation
def ssim(
    image1: ArrayLike,
    image2: ArrayLike,
    max_val: float = 1.0,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    data_format: str | None = None,
) -> jax.Array:
    """Return the structural similarity of pairs of images, at most 1, (batch,).

    Args:
        image1: (height, width, channels), or a batch of them.
        image2: like `image1`.
        max_val: the largest value of a pixel.
        filter_size: size of the windows in which images are compared [pixels].
        filter_sigma: standard deviation of the weights of a window [pixels].
        k1: keeps the quotient of means finite.
        k2: keeps the quotient of variances finite.
        data_format: as in `resize`.

    Source: `keras.ops.image.ssim`; https://doi.org/10.1109/TIP.2003.819861.
    """
    given, other = _Images.of("ssim", image1, data_format), _Images.of("ssim", image2, data_format)
    one, two = floating(given.values), other.values.astype(floating(given.values).dtype)
    weights = image_transforms.gaussian(filter_size, filter_sigma, one.dtype)
    kernel = jnp.outer(weights, weights)
    mean_1, mean_2, square_1, square_2, product = (
        image_transforms.filtered(values, kernel, "VALID") for values in (one, two, one * one, two * two, one * two)
    )
    of_means, of_variances = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    both = (2 * mean_1 * mean_2 + of_means) * (2 * (product - mean_1 * mean_2) + of_variances)
    spread = square_1 - mean_1**2 + square_2 - mean_2**2 + of_variances
    values = jnp.mean(both / ((mean_1**2 + mean_2**2 + of_means) * spread), axis=(1, 2, 3))
    return (values if given.is_batch else values[0]).astype(given.values.dtype)


@operation
def map_coordinates(
    inputs: ArrayLike, coordinates: ArrayLike, order: int, fill_mode: str = "constant", fill_value: float = 0
) -> jax.Array:
    """Interpolate an array at positions between its elements, (...).

    Args:
        inputs: an array.
        coordinates: (dims of `inputs`, ...), a position in each dim.
        order: 0 for the nearest element, 1 for linear interpolation.
        fill_mode: values beyond the borders: `"constant"`, `"nearest"`, `"wrap"`, `"mirror"` or `"reflect"`.
        fill_value: the value for `"constant"`.

    Raises:
        ModelError: the shape of `coordinates` does not fit, or an argument has an unknown value.
    """
    array, positions = as_array(inputs), as_array(coordinates)
    if positions.ndim < 2 or len(positions) != array.ndim:
        summary = f"map_coordinates: the coordinates must have shape ({array.ndim}, ...), a position in each dim"
        given = f"inputs of shape {array.shape}, coordinates of shape {positions.shape}"
        raise ModelError(summary, given=given, fix="ops.stack([rows, columns])")
    check_option("order", order, (0, 1))
    mode = check_option("fill_mode", fill_mode, image_transforms.FILL_MODES)
    return jax.scipy.ndimage.map_coordinates(array, list(positions), order, mode, fill_value)


@operation
def affine_transform(
    images: ArrayLike,
    transform: ArrayLike,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> jax.Array:
    """Return images whose pixel (x, y) is the given pixel at (a0 x + a1 y + a2, b0 x + b1 y + b2).

    Args:
        transform: [a0, a1, a2, b0, b1, b2, 0, 0], or one for each image, (batch, 8).
        interpolation: `"bilinear"` or `"nearest"`.
        fill_mode, fill_value: as in `map_coordinates`.
        images, data_format: as in `resize`.

    Raises:
        ModelError: `transform` does not have eight numbers, or an argument has an unknown value.
    """
    given = _Images.of("affine_transform", images, data_format)
    numbers = jnp.atleast_2d(as_array(transform))
    if numbers.ndim != 2 or numbers.shape[-1] != 8:
        summary = "affine_transform: the transform must have shape (8,), or (batch, 8)"
        fix = "[1, 0, columns, 0, 1, rows, 0, 0] moves images"
        raise ModelError(summary, given=f"transform of shape {numbers.shape}", fix=fix)
    return _transformed(given, numbers, interpolation, fill_mode, fill_value)


@operation
def perspective_transform(
    images: ArrayLike,
    start_points: ArrayLike,
    end_points: ArrayLike,
    interpolation: str = "bilinear",
    fill_value: float = 0,
    data_format: str | None = None,
) -> jax.Array:
    """Apply the perspective transform that moves four points of an image.

    Args:
        start_points: (x, y) of four points, (4, 2), or (batch, 4, 2).
        end_points: their positions in the result.
        fill_value: value beyond the borders.
        images, data_format: as in `resize`.
        interpolation: as in `affine_transform`.

    Raises:
        ModelError: there are not four points, or an argument has an unknown value.
    """
    given = _Images.of("perspective_transform", images, data_format)
    points = [as_array(some, jnp.float32) for some in (start_points, end_points)]
    if any(some.shape[-2:] != (4, 2) or some.ndim not in (2, 3) for some in points):
        summary = "perspective_transform moves four points: arrays of shape (4, 2), or (batch, 4, 2)"
        fix = "the corners, for example: [[0, 0], [0, width], [height, 0], [height, width]]"
        raise ModelError(summary, given=shapes(start_points=points[0], end_points=points[1]), fix=fix)
    numbers = image_transforms.perspective(*(some.reshape(-1, 4, 2) for some in points))
    return _transformed(given, numbers, interpolation, "constant", fill_value, is_affine=False)


@operation
def elastic_transform(
    images: ArrayLike,
    alpha: float = 20.0,
    sigma: float = 5.0,
    interpolation: str = "bilinear",
    fill_mode: str = "reflect",
    fill_value: float = 0.0,
    seed: Any = None,
    data_format: str | None = None,
) -> jax.Array:
    """Displace pixels at random, neighbours by similar amounts.

    Args:
        alpha: scale of the displacement.
        sigma: smoothness [pixels].
        seed: see `random.normal`.
        images, data_format: as in `resize`.
        interpolation, fill_mode, fill_value: as in `affine_transform`.
    """
    given = _Images.of("elastic_transform", images, data_format)
    values = given.values
    noise = random.normal(values.shape[:3], dtype=values.dtype, seed=seed)
    options = (*_checked(interpolation, fill_mode), fill_value)
    return given.restored(image_transforms.elastic_transform(values, noise, alpha, sigma, sigma, *options))


@operation
def scale_and_translate(
    images: ArrayLike,
    output_shape: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    spatial_dims: Sequence[int],
    method: str,
    antialias: bool = True,
) -> jax.Array:
    """Scale images, then translate them; for the arguments see `jax.image.scale_and_translate`."""
    chosen = check_option("method", method, _METHODS)
    return jax.image.scale_and_translate(
        as_array(images), output_shape, spatial_dims, as_array(scale), as_array(translation), chosen, antialias
    )


def _transformed(
    given: _Images, transform: jax.Array, interpolation: str, fill_mode: str, fill_value: float, is_affine: bool = True
) -> jax.Array:
    y, x = jnp.meshgrid(*map(jnp.arange, given.values.shape[1:3]), indexing="ij")
    t = [number[:, None, None] for number in transform.T]
    # not by `image_transforms.affine_transform`, which adds the products in another order: the sums round differently
    rows, columns = t[3] * x + t[4] * y + t[5], t[0] * x + t[1] * y + t[2]
    if not is_affine:
        depth = t[6] * x + t[7] * y + 1
        rows, columns = rows / depth, columns / depth
    coordinates = jnp.stack([rows, columns], 1)
    of_each = jnp.broadcast_to(coordinates, (len(given.values), *coordinates.shape[1:]))
    options = (*_checked(interpolation, fill_mode), fill_value)
    return given.restored(image_transforms.sampled(given.values, of_each, *options))


def _checked(interpolation: str, fill_mode: str) -> tuple[str, str]:
    return (
        check_option("interpolation", interpolation, ("bilinear", "nearest")),
        check_option("fill_mode", fill_mode, image_transforms.FILL_MODES),
    )


def _float_channels(name: str, given: _Images) -> jax.Array:
    _check_channels(name, given.values, (3,))
    if not jnp.issubdtype(given.values.dtype, jnp.floating):
        raise ModelError(f"{name} takes floats from 0 to 1", given=str(given.values.dtype), fix="images / 255")
    return given.values


def _check_channels(name: str, images: jax.Array, counts: Sequence[int]) -> None:
    if images.shape[-1] not in counts:
        given = f"{images.shape[-1]} channels"
        fix = 'data_format="channels_first" for images (channels, height, width)'
        raise ModelError(f"{name} takes images of {' or '.join(map(str, counts))} channels", given=given, fix=fix)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
