"""Image arithmetic that layers call, too: colours, filters, resizing, cropping and geometric transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.types import ArrayLike
from keras_dist.ops.core import saturate_cast

RESIZE_INTERPOLATIONS = ("bilinear", "nearest", "lanczos3", "lanczos5", "bicubic")
AFFINE_INTERPOLATIONS = ("nearest", "bilinear")
"""Interpolation of order 0 and 1."""
FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")


def rgb_to_hsv(images: jax.Array) -> jax.Array:
    """Convert RGB images, floats, to hue, saturation and value."""
    values = jnp.where(jnp.abs(images) < jnp.finfo(images.dtype).eps, 0, images)
    red, green, blue = jnp.unstack(values, axis=-1)
    most = jnp.max(values, -1)
    spread = most - jnp.min(values, -1)
    sixth = 1 / (6 * jnp.where(spread > 0, spread, 1))
    hue = jnp.where(most == green, sixth * (blue - red) + 1 / 3, sixth * (red - green) + 2 / 3)
    hue = jnp.where(most == red, sixth * (green - blue), hue)
    hue = jnp.where(spread > 0, hue, 0) + (hue < 0)
    saturation = jnp.where(most > 0, spread / jnp.where(most > 0, most, 1), 0)
    return jnp.stack([hue, saturation, most], -1).astype(images.dtype)


def hsv_to_rgb(images: jax.Array) -> jax.Array:
    """Convert images of hue, saturation and value to RGB."""
    hue, saturation, value = jnp.unstack(images, axis=-1)
    sector = hue % 1 * 6
    pure = (jnp.abs(sector - 3) - 1, 2 - jnp.abs(sector - 2), 2 - jnp.abs(sector - 4))
    channels = [value * (1 - saturation + saturation * jnp.clip(channel, 0, 1)) for channel in pure]
    return jnp.stack(channels, -1)


def gaussian(size: int, sigma: ArrayLike, dtype: Any) -> jax.Array:
    """Return the weights (size,) of a Gaussian filter, which sum to 1; `sigma` may be traced."""
    positions = jnp.asarray(np.arange(size) - (size - 1) / 2, dtype)
    weights = jnp.exp(-0.5 * jnp.square(positions / jnp.asarray(sigma, dtype)))
    return weights / jnp.sum(weights)


def filtered(images: jax.Array, kernel: jax.Array, padding: str) -> jax.Array:
    """Filter each channel of images (batch, height, width, channels) by `kernel` (height, width)."""
    channels = images.shape[-1]
    return jax.lax.conv_general_dilated(
        images,
        jnp.broadcast_to(kernel[..., None, None], (*kernel.shape, 1, channels)),
        (1, 1),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )


def height_and_width(images: jax.Array, data_format: str) -> tuple[int, int]:
    """Return height and width of an image, or of a batch."""
    height, width = image_axes(data_format)
    return images.shape[height], images.shape[width]


def image_axes(data_format: str) -> tuple[int, int]:
    """Return the dims of height and width, counted from the end, of an image or a batch."""
    return (-3, -2) if data_format == "channels_last" else (-2, -1)


def affine_transform(
    images: jax.Array,
    transform: ArrayLike,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str = "channels_last",
    is_affine: bool = True,
) -> jax.Array:
    """Return images whose pixel (x, y) is the given pixel at (a0 x + a1 y + a2, b0 x + b1 y + b2).

    `transform` is `[a0, a1, a2, b0, b1, b2, c0, c1]` of each image, (batch, 8). If it is not affine, both coordinates
    are divided by c0 x + c1 y + 1.
    """
    if data_format == "channels_first":
        images = jnp.moveaxis(images, 1, -1)
    height, width = images.shape[1:3]
    a0, a1, a2, b0, b1, b2, c0, c1 = (jnp.asarray(transform, "float32")[:, index, None, None] for index in range(8))
    y, x = jnp.meshgrid(jnp.arange(height, dtype="float32"), jnp.arange(width, dtype="float32"), indexing="ij")
    coordinates = jnp.stack([b1 * y + b0 * x + b2, a1 * y + a0 * x + a2], axis=1)
    if not is_affine:
        coordinates = coordinates / (c0 * x + c1 * y + 1)[:, None]
    found = sampled(images, coordinates, interpolation, fill_mode, fill_value)
    return jnp.moveaxis(found, -1, 1) if data_format == "channels_first" else found


def sampled(
    images: jax.Array, coordinates: jax.Array, interpolation: str, fill_mode: str, fill_value: float
) -> jax.Array:
    """Sample images (batch, height, width, channels) at coordinates (batch, 2, height, width): rows and columns."""
    order = AFFINE_INTERPOLATIONS.index(interpolation)

    def sample(channel: jax.Array, places: jax.Array) -> jax.Array:
        return jax.scipy.ndimage.map_coordinates(channel, list(places), order, fill_mode, fill_value)

    return jax.vmap(jax.vmap(sample, (-1, None), -1))(images, coordinates)


def elastic_transform(
    images: jax.Array,
    noise: jax.Array,
    alpha: ArrayLike,
    sigma: ArrayLike,
    largest_sigma: float,
    interpolation: str = "bilinear",
    fill_mode: str = "reflect",
    fill_value: float = 0.0,
) -> jax.Array:
    """Displace pixels of images (batch, height, width, channels) by smoothed `noise` (batch, height, width).

    `alpha` scales the displacement, `sigma`, at most `largest_sigma`, is the smoothness [pixels]; both may be traced.
    """
    sigma = jnp.maximum(jnp.asarray(sigma, noise.dtype), 1e-3)  # the filter has one element below
    reach = int(6 * largest_sigma) // 2
    offsets = np.arange(-reach, reach + 1)
    weights = jnp.exp(-0.5 * jnp.square(jnp.asarray(offsets, noise.dtype) / sigma))
    weights = jnp.where(np.abs(offsets) <= (6 * sigma).astype("int32") // 2, weights, 0)
    weights = weights / jnp.sum(weights)
    ways = filtered((noise * sigma)[..., None], jnp.outer(weights, weights), "SAME")[..., 0]
    y, x = jnp.meshgrid(*map(jnp.arange, images.shape[1:3]), indexing="ij")
    moved = jnp.asarray(alpha, noise.dtype) * ways  # the same for rows and columns, as in Keras
    return sampled(images, jnp.stack([y + moved, x + moved], 1), interpolation, fill_mode, fill_value)


def rotation(angle: jax.Array, height: int, width: int) -> jax.Array:
    """Return transforms (batch, 8) that rotate images about their centres by `angle` (batch,) [radians]."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = 0.5 * (width - 1), 0.5 * (height - 1)
    return _rows(cos, -sin, x - x * cos + y * sin, sin, cos, y - x * sin - y * cos)


def zoom(x_factor: jax.Array, y_factor: jax.Array, height: int, width: int) -> jax.Array:
    """Return transforms (batch, 8) that zoom images about their centres; factors below 1 magnify."""
    zeros = jnp.zeros_like(x_factor)
    x, y = (width - 1.0) / 2.0 * (1.0 - x_factor), (height - 1.0) / 2.0 * (1.0 - y_factor)
    return _rows(x_factor, zeros, x, zeros, y_factor, y)


def translation(dx: jax.Array, dy: jax.Array) -> jax.Array:
    """Return transforms (batch, 8) that translate images by `dx` and `dy` [pixels]."""
    ones, zeros = jnp.ones_like(dx), jnp.zeros_like(dx)
    return _rows(ones, zeros, -dx, zeros, ones, -dy)


def perspective(start: jax.Array, end: jax.Array) -> jax.Array:
    """Return transforms (batch, 8) that move the points (x, y) `start` (batch, 4, 2) to `end`."""
    ends = jnp.concatenate([end, jnp.ones_like(end[..., :1])], -1)  # x, y, 1 of each point
    zeros = jnp.zeros_like(ends)
    rows = [
        jnp.concatenate([ends, zeros, -start[..., :1] * end], -1),
        jnp.concatenate([zeros, ends, -start[..., 1:] * end], -1),
    ]
    targets = jnp.concatenate([start[..., 0], start[..., 1]], 1)[..., None]
    return jnp.linalg.solve(jnp.concatenate(rows, 1), targets)[..., 0]


def _rows(*entries: jax.Array) -> jax.Array:
    zeros = jnp.zeros_like(entries[0])
    return jnp.stack([*entries, zeros, zeros], axis=-1)


def resize(
    images: jax.Array,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_value: float = 0.0,
    data_format: str = "channels_last",
    keeps_dtype: bool = False,
) -> jax.Array:
    """Resize images; with `keeps_dtype`, interpolated integers are rounded, else they become floats.

    Images of another aspect ratio are stretched, cropped to their largest centered part, or padded with `fill_value`.
    """
    dtype = images.dtype
    height, width = height_and_width(images, data_format)
    if crop_to_aspect_ratio:
        images = crop(images, *largest_like(height, width, size), data_format)
    elif pad_to_aspect_ratio:
        before = [0] * images.ndim
        for axis, old, new in zip(
            image_axes(data_format),
            (height, width),
            (int(float(width * size[0]) / size[1]), int(float(height * size[1]) / size[0])),
            strict=True,
        ):
            before[axis] = max(new - old, 0) // 2
        if any(before):
            images = images if jnp.issubdtype(images.dtype, jnp.floating) else images.astype("float32")
            images = jnp.pad(images, [(amount, amount) for amount in before], constant_values=fill_value)
    shape = list(images.shape)
    for axis, new in zip(image_axes(data_format), size, strict=True):
        shape[axis] = new
    resized = jax.image.resize(images, shape, interpolation, antialias=antialias)
    if not keeps_dtype or resized.dtype == dtype:
        return resized
    return saturate_cast(jnp.round(resized) if jnp.issubdtype(dtype, jnp.integer) else resized, dtype)


def largest_like(height: int, width: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the largest centered part with the aspect ratio of `size`."""
    new_height = max(min(height, int(float(width * size[0]) / size[1])), 1)
    new_width = max(min(width, int(float(height * size[1]) / size[0])), 1)
    return (height - new_height) // 2, (width - new_width) // 2, new_height, new_width


def crop(
    images: jax.Array, top: ArrayLike, left: ArrayLike, height: int, width: int, data_format: str = "channels_last"
) -> jax.Array:
    """Crop all images to one rectangle; `top` and `left` may be traced."""
    for axis, start, size in zip(image_axes(data_format), (top, left), (height, width), strict=True):
        images = jax.lax.dynamic_slice_in_dim(images, start, size, axis % images.ndim)
    return images


def rgb_to_grayscale(images: jax.Array, data_format: str = "channels_last") -> jax.Array:
    """Convert RGB or gray images to gray images with one channel."""
    axis = -1 if data_format == "channels_last" else -3
    if images.shape[axis] == 1:
        return images
    weights = jnp.asarray([0.2989, 0.5870, 0.1140], images.dtype)
    return jnp.sum(images * jnp.expand_dims(weights, range(1, -axis)), axis, keepdims=True)


def smart_resize(
    x: ArrayLike,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    data_format: str = "channels_last",
    **kwargs: object,
) -> ArrayLike:
    """Resize images without distortion: the largest centered part with the new aspect ratio is resized.

    Args:
        x: an image or a batch of images.
        size: the new height and width.
        interpolation: `"bilinear"`, `"nearest"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        data_format: `"channels_last"`, or `"channels_first"`.
        **kwargs: unused, such as `backend_module` of Keras.

    Returns:
        A NumPy array if `x` is one, else a JAX array.

    Source: `keras.preprocessing.image.smart_resize`.
    """
    resized = resize(jnp.asarray(x), size, interpolation, crop_to_aspect_ratio=True, data_format=data_format)
    return np.asarray(resized) if isinstance(x, np.ndarray) else resized
