"""Images: colours, sizes, borders and filters; `ops.image_sampling` moves pixels, `ops.patches` cuts patches out.

Source: names, arguments and defaults as in `keras.ops.image`.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_option, check_sizes
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops import image_filters, image_transforms
from keras_dist.ops.image_form import Images
from keras_dist.ops.image_sampling import affine_transform as affine_transform
from keras_dist.ops.image_sampling import elastic_transform as elastic_transform
from keras_dist.ops.image_sampling import map_coordinates as map_coordinates
from keras_dist.ops.image_sampling import perspective_transform as perspective_transform
from keras_dist.ops.image_sampling import scale_and_translate as scale_and_translate
from keras_dist.ops.operation import floating, names_in, operation
from keras_dist.ops.patches import extract_patches as extract_patches
from keras_dist.ops.patches import extract_patches_3d as extract_patches_3d


@operation
def rgb_to_grayscale(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Return the brightness of images, with one channel; those that have one already stay as they are.

    Args:
        images: (height, width, 3), or a batch of them.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    given = Images.of("rgb_to_grayscale", images, data_format)
    values = given.values
    if values.shape[-1] == 1:
        return given.restored(values)
    _check_channels("rgb_to_grayscale", values, (1, 3))
    weights = jnp.asarray([0.2989, 0.5870, 0.1140], floating(values).dtype)
    return given.restored((floating(values) @ weights)[..., None].astype(values.dtype))


@operation
def rgb_to_hsv(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Return hue, saturation and value, from 0 to 1, of images of red, green and blue, floats from 0 to 1.

    Args:
        images: (height, width, 3), or a batch of them.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    given = Images.of("rgb_to_hsv", images, data_format)
    values = _float_channels("rgb_to_hsv", given)
    return given.restored(image_filters.rgb_to_hsv(values))


@operation
def hsv_to_rgb(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Return red, green and blue of images of hue, saturation and value, floats from 0 to 1.

    Args:
        images: (height, width, 3), or a batch of them.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    given = Images.of("hsv_to_rgb", images, data_format)
    return given.restored(image_filters.hsv_to_rgb(_float_channels("hsv_to_rgb", given)))


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
    """Return images of another size, in the same element type.

    Args:
        images: (height, width, channels), or a batch of them.
        size: the new height and width.
        interpolation: `"bilinear"`, `"nearest"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        antialias: whether smaller images are made of all pixels.
        crop_to_aspect_ratio: whether images of another aspect ratio are cropped, instead of stretched.
        pad_to_aspect_ratio: whether they get borders.
        fill_mode: only `"constant"`.
        fill_value: of the borders.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Raises:
        ModelError: an argument is none of these, or images are to be cropped and padded.
    """
    given = Images.of("resize", images, data_format)
    height, width = check_sizes("size", size, 2, "resize")
    method = check_option("interpolation", interpolation, image_transforms.RESIZE_INTERPOLATIONS)
    check_option("fill_mode", fill_mode, ("constant",))
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        summary = "resize: images cannot be both cropped and padded"
        raise ModelError(summary, given="crop_to_aspect_ratio=True, pad_to_aspect_ratio=True", fix="leave one out")
    ratio = (crop_to_aspect_ratio, pad_to_aspect_ratio)
    resized = image_transforms.resize(
        given.values, (height, width), method, antialias, *ratio, fill_value, keeps_dtype=True
    )
    return given.restored(resized)


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
    """Return images with borders of 0: of the two paddings and the size of each dim, two are given.

    Args:
        images: (height, width, channels), or a batch of them.
        top_padding: rows above.
        left_padding: columns to the left.
        bottom_padding: rows below.
        right_padding: columns to the right.
        target_height: the new height.
        target_width: the new width.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Raises:
        ModelError: other than two are given, or one would be negative.
    """
    given = Images.of("pad_images", images, data_format)
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
    """Return a part of images: of the two croppings and the size of each dim, two are given.

    Args:
        images: (height, width, channels), or a batch of them.
        top_cropping: rows that are cut off above.
        left_cropping: columns to the left.
        bottom_cropping: rows below.
        right_cropping: columns to the right.
        target_height: the new height.
        target_width: the new width.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Raises:
        ModelError: other than two are given, or one would be negative.
    """
    given = Images.of("crop_images", images, data_format)
    rows, columns = given.values.shape[1:3]
    top, bottom = _ends("crop_images", "height", top_cropping, bottom_cropping, target_height, rows)
    left, right = _ends("crop_images", "width", left_cropping, right_cropping, target_width, columns)
    return given.restored(given.values[:, top : rows - bottom, left : columns - right])


def _ends(name: str, dim: str, before: int | None, after: int | None, target: int | None, size: int) -> tuple[int, int]:
    """How much is cut off a dim of `size` before and after; of a negative size how much is added."""
    expected = f"two of what is before, what is after, and target_{dim}, and none of the three below 0"
    fix = f"leave target_{dim} out where both ends are given"
    told = f"{before}, {after} and target_{dim}={target} for a {dim} of {abs(size)}"
    if [before, after, target].count(None) != 1:
        raise ModelError(f"{name}: the {dim} is not determined", given=told, expected=expected, fix=fix)
    changed = None if target is None else (size - target if size >= 0 else target + size)
    first: Any = changed - after if before is None and changed is not None and after is not None else before
    last: Any = changed - first if after is None and changed is not None else after
    if min(first, last, size - first - last if size >= 0 else 0) < 0:
        raise ModelError(f"{name}: the {dim} does not fit", given=told, expected=expected, fix=fix)
    return first, last


@operation
def gaussian_blur(
    images: ArrayLike,
    kernel_size: Sequence[int] = (3, 3),
    sigma: Sequence[float] = (1.0, 1.0),
    data_format: str | None = None,
) -> jax.Array:
    """Return images that are blurred by a Gaussian.

    Args:
        images: floats (height, width, channels), or a batch of them.
        kernel_size: of the filter: its width and height, as in Keras; equal ones as a rule.
        sigma: the standard deviations, in pixels, along both.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    given = Images.of("gaussian_blur", images, data_format)
    columns, rows = (
        image_filters.gaussian(size, width, given.values.dtype) for size, width in zip(kernel_size, sigma, strict=True)
    )
    return given.restored(image_filters.filtered(given.values, jnp.outer(rows, columns), "SAME"))


@operation
def sobel_edges(images: ArrayLike, data_format: str | None = None) -> jax.Array:
    """Return the derivatives of images downwards and to the right, as a last dim of size 2.

    Args:
        images: a batch (batch, height, width, channels).
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    given = Images.of("sobel_edges", images, data_format)
    to_right = jnp.asarray([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], given.values.dtype)
    edges = [given.restored(image_filters.filtered(given.values, kernel, "SAME")) for kernel in (to_right.T, to_right)]
    return jnp.stack(edges, -1)


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
        image2: as `image1`.
        max_val: the largest value of a pixel.
        filter_size: of the windows, in which images are compared.
        filter_sigma: the standard deviation of their weights, in pixels.
        k1: keeps the quotient of means finite.
        k2: keeps the quotient of variances finite.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Source: `keras.ops.image.ssim`; https://doi.org/10.1109/TIP.2003.819861.
    """
    given, other = Images.of("ssim", image1, data_format), Images.of("ssim", image2, data_format)
    one, two = floating(given.values), other.values.astype(floating(given.values).dtype)
    weights = image_filters.gaussian(filter_size, filter_sigma, one.dtype)
    kernel = jnp.outer(weights, weights)
    mean_1, mean_2, square_1, square_2, product = (
        image_filters.filtered(values, kernel, "VALID") for values in (one, two, one * one, two * two, one * two)
    )
    of_means, of_variances = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    both = (2 * mean_1 * mean_2 + of_means) * (2 * (product - mean_1 * mean_2) + of_variances)
    spread = square_1 - mean_1**2 + square_2 - mean_2**2 + of_variances
    values = jnp.mean(both / ((mean_1**2 + mean_2**2 + of_means) * spread), axis=(1, 2, 3))
    return (values if given.is_batch else values[0]).astype(given.values.dtype)


def _float_channels(name: str, given: Images) -> jax.Array:
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
