"""Transformations of bounding boxes together with images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_option
from keras_dist._support.types import ArrayLike
from keras_dist.bounding_boxes.boxes import areas, as_boxes, check_has_size, of_edges


def clip_to_image_size(
    bounding_boxes: Mapping[str, Any],
    height: ArrayLike | None = None,
    width: ArrayLike | None = None,
    bounding_box_format: str = "xyxy",
) -> dict[str, Any]:
    """Clip boxes to the image; boxes that become empty get the label -1.

    Args:
        bounding_boxes: a dict of `"boxes"` (..., 4) and optional `"labels"` (...).
        height: height of the image [pixels], for `"xyxy"`.
        width: width of the image [pixels], for `"xyxy"`.
        bounding_box_format: `"xyxy"` or `"rel_xyxy"`.

    Returns:
        A copy of the dict, with new boxes and labels.

    Raises:
        ModelError: the format is another one, or height and width are missing.
    """
    is_relative = check_option("bounding_box_format", bounding_box_format, ("xyxy", "rel_xyxy")) == "rel_xyxy"
    if not is_relative:
        check_has_size(height, width, "xyxy")
    boxes = as_boxes(bounding_boxes["boxes"])
    limits = (1, 1) if is_relative else (jnp.asarray(width, boxes.dtype), jnp.asarray(height, boxes.dtype))
    found = {**bounding_boxes, "boxes": (boxes := of_edges(_clipped, boxes, *limits))}
    if bounding_boxes.get("labels") is not None:
        found["labels"] = jnp.where(areas(boxes) > 0, jnp.asarray(bounding_boxes["labels"]), -1)
    return found


def crop(
    boxes: ArrayLike,
    top: ArrayLike,
    left: ArrayLike,
    height: ArrayLike,
    width: ArrayLike,
    bounding_box_format: str = "xyxy",
) -> jax.Array:
    """Return boxes in a crop of the image, clipped to it.

    Args:
        boxes: (..., 4) [pixels].
        top: top of the crop [pixels].
        left: left of the crop [pixels].
        height: height of the crop [pixels].
        width: width of the crop [pixels].
        bounding_box_format: must be `"xyxy"`; use `convert_format`.

    Raises:
        ModelError: the format is another one.
    """
    _check_is_xyxy(bounding_box_format)
    return of_edges(_clipped, of_edges(jnp.subtract, as_boxes(boxes), left, top), width, height)


def pad(
    boxes: ArrayLike,
    top: ArrayLike,
    left: ArrayLike,
    height: Any = None,
    width: Any = None,
    bounding_box_format: str = "xyxy",
) -> jax.Array:
    """Return boxes in an image that is padded above and on the left.

    Args:
        boxes: (..., 4) [pixels].
        top: number of rows above.
        left: number of columns on the left.
        height, width: unused, as in Keras.
        bounding_box_format: must be `"xyxy"`; use `convert_format`.

    Raises:
        ModelError: the format is another one.
    """
    _check_is_xyxy(bounding_box_format)
    return of_edges(jnp.add, as_boxes(boxes), left, top)


def affine_transform(
    boxes: ArrayLike,
    angle: ArrayLike,
    translate_x: ArrayLike,
    translate_y: ArrayLike,
    scale: ArrayLike,
    shear_x: ArrayLike,
    shear_y: ArrayLike,
    height: ArrayLike,
    width: ArrayLike,
    center_x: ArrayLike | None = None,
    center_y: ArrayLike | None = None,
    bounding_box_format: str = "xyxy",
) -> jax.Array:
    """Return bounding boxes of affinely transformed boxes, which may exceed the image.

    Parameters of the transformation are numbers for all images, or arrays (batch,).

    Args:
        boxes: (batch, N, 4), or (N, 4) for one image [pixels].
        angle: rotation, counterclockwise [degrees].
        translate_x: translation to the right, as a fraction of the width.
        translate_y: translation downwards, as a fraction of the height.
        scale: factor of sizes.
        shear_x, shear_y: shear angle [degrees].
        height: height of the image [pixels].
        width: width of the image [pixels].
        center_x: fixed point, as a fraction of the width; by default 0.5.
        center_y: fixed point, as a fraction of the height; by default 0.5.
        bounding_box_format: must be `"xyxy"`; use `convert_format`.

    Raises:
        ModelError: the format is another one.
    """
    _check_is_xyxy(bounding_box_format)
    rotation, tan_x, shear = (-jnp.asarray(each) * (math.pi / 180) for each in (angle, shear_x, shear_y))
    tan_x = jnp.tan(tan_x)
    right, down = jnp.asarray(width) - 1, jnp.asarray(height) - 1
    x_0, y_0 = ((0.5 if at is None else at) * side for at, side in ((center_x, right), (center_y, down)))
    a = jnp.cos(rotation - shear) / jnp.cos(shear)
    b = a * tan_x + jnp.sin(rotation)
    c = -jnp.sin(rotation - shear) / jnp.cos(shear)
    d = jnp.cos(rotation) - c * tan_x
    factors = [jnp.asarray(scale) * each for each in (d, -b, -c, a)]
    from_x, from_y = x_0 - jnp.asarray(translate_x) * right, y_0 - jnp.asarray(translate_y) * down
    shifts = [x_0 - factors[0] * from_x - factors[1] * from_y, y_0 - factors[2] * from_x - factors[3] * from_y]
    # the batch dim comes before the dims of boxes and their corners
    rows = [jnp.asarray(each)[..., None, None] for each in (*factors, *shifts)]
    x_1, y_1, x_2, y_2 = jnp.split(as_boxes(boxes, rows[0].dtype), 4, axis=-1)
    x, y = jnp.concatenate([x_1, x_2, x_2, x_1], axis=-1), jnp.concatenate([y_1, y_1, y_2, y_2], axis=-1)
    x, y = rows[0] * x + rows[1] * y + rows[4], rows[2] * x + rows[3] * y + rows[5]
    return jnp.stack([x.min(-1), y.min(-1), x.max(-1), y.max(-1)], axis=-1)


def _clipped(edge: jax.Array, limit: ArrayLike) -> jax.Array:
    return jnp.clip(edge, 0, limit)


def _check_is_xyxy(bounding_box_format: str) -> None:
    check_option("bounding_box_format", bounding_box_format, ("xyxy",))
