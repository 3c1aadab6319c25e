"""Images whose pixels are moved: values between pixels are interpolated."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.ndimage

from keras_dist import random
from keras_dist._support.arguments import check_option, shapes
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops import image_transforms
from keras_dist.ops.image_form import Images
from keras_dist.ops.operation import as_array, names_in, operation

_METHODS = ("linear", "bilinear", "trilinear", "cubic", "bicubic", "tricubic", "lanczos3", "lanczos5")


@operation
def map_coordinates(
    inputs: ArrayLike, coordinates: ArrayLike, order: int, fill_mode: str = "constant", fill_value: float = 0
) -> jax.Array:
    """Return the values of an array at positions between its elements.

    Args:
        inputs: an array.
        coordinates: (dims of `inputs`, ...), a position in each dim.
        order: 0 for the nearest element, 1 for linear interpolation.
        fill_mode: what lies beyond the borders: `"constant"`, `"nearest"`, `"wrap"`, `"mirror"` or `"reflect"`.
        fill_value: of `"constant"`.

    Returns:
        (...).

    Raises:
        ModelError: the coordinates do not fit, or an argument is none of these.
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
    """Return images whose pixel (x, y) is that at (a0 x + a1 y + a2, b0 x + b1 y + b2) of the given ones.

    Args:
        images: (height, width, channels), or a batch of them.
        transform: [a0, a1, a2, b0, b1, b2, 0, 0], or one for each image.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_mode: as of `map_coordinates`.
        fill_value: as of `map_coordinates`.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Raises:
        ModelError: the transform does not have eight numbers, or an argument is none of these.
    """
    given = Images.of("affine_transform", images, data_format)
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
    """Return images as seen from elsewhere: four points of them are moved.

    Args:
        images: (height, width, channels), or a batch of them.
        start_points: (x, y) of four points, (4, 2), or (batch, 4, 2).
        end_points: where they are afterwards.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_value: what lies beyond the borders.
        data_format: `"channels_last"`, the default, or `"channels_first"`.

    Raises:
        ModelError: there are not four points, or an argument is none of these.
    """
    given = Images.of("perspective_transform", images, data_format)
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
    """Return images whose pixels are moved at random, neighbours by nearly the same way.

    Args:
        images: (height, width, channels), or a batch of them.
        alpha: how far.
        sigma: how smoothly, in pixels.
        interpolation: `"bilinear"` or `"nearest"`.
        fill_mode: as of `map_coordinates`.
        fill_value: as of `map_coordinates`.
        seed: as of `random.normal`.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
    """
    given = Images.of("elastic_transform", images, data_format)
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
    """Return images that are scaled, then moved; see `jax.image.scale_and_translate`.

    Args:
        images: an array.
        output_shape: of the result, with all dims.
        scale: a factor for each of `spatial_dims`.
        translation: by how many pixels, for each of them.
        spatial_dims: the dims.
        method: `"linear"`, `"cubic"`, `"lanczos3"` or `"lanczos5"`.
        antialias: whether smaller images are made of all pixels.
    """
    chosen = check_option("method", method, _METHODS)
    return jax.image.scale_and_translate(
        as_array(images), output_shape, spatial_dims, as_array(scale), as_array(translation), chosen, antialias
    )


def _transformed(
    given: Images, transform: jax.Array, interpolation: str, fill_mode: str, fill_value: float, is_affine: bool = True
) -> jax.Array:
    """Return images, each moved by its transform, (batch or 1, 8)."""
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


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
