"""Overlap of bounding boxes: `compute_iou` and `compute_ciou`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import ArrayLike
from keras_dist.bounding_boxes.formats import areas, convert_format, image_size
from keras_dist.config.settings import epsilon


def compute_iou(
    boxes1: Any,
    boxes2: Any,
    bounding_box_format: str,
    use_masking: bool = False,
    mask_val: ArrayLike = -1,
    image_shape: Sequence[int] | None = None,
) -> jax.Array:
    """Return the intersection over union of all pairs of boxes.

    Args:
        boxes1: (M, 4) or (batch, M, 4).
        boxes2: (N, 4) or (batch, N, 4).
        bounding_box_format: format of both; see `convert_format`.
        use_masking: whether boxes with only negative coordinates are padding.
        mask_val: result for pairs with padding.
        image_shape: (height, width, channels), for relative formats.

    Returns:
        Fractions (M, N) or (batch, M, N), float32.

    Raises:
        ModelError: the format is unknown, `image_shape` is missing, or boxes have other shapes.

    Example:
        >>> import numpy as np
        >>> from keras_dist.utils import bounding_boxes
        >>> bounding_boxes.compute_iou(np.array([[0, 0, 2, 2]]), np.array([[0, 0, 2, 1], [4, 4, 6, 6]]), "xyxy")
        Array([[0.5, 0. ]], dtype=float32)

    Source: `keras.utils.bounding_boxes.compute_iou`.
    """
    for argument, boxes in (("boxes1", boxes1), ("boxes2", boxes2)):
        if jnp.ndim(boxes) not in (2, 3):
            raise argument_error(argument, boxes, "of shape (N, 4) or (batch, N, 4)")
    size = image_size(image_shape, bounding_box_format)
    # each box of the first before all of the second
    boxes1 = convert_format(boxes1, bounding_box_format, "xyxy", *size)[..., :, None, :]
    boxes2 = convert_format(boxes2, bounding_box_format, "xyxy", *size)[..., None, :, :]
    shared = _shared_areas(boxes1, boxes2)
    found = shared / (areas(boxes1) + areas(boxes2) - shared + epsilon())
    if not use_masking:
        return found
    return jnp.where((boxes1.max(-1) < 0) | (boxes2.max(-1) < 0), jnp.asarray(mask_val, found.dtype), found)


def compute_ciou(
    boxes1: Any, boxes2: Any, bounding_box_format: str, image_shape: Sequence[int] | None = None
) -> jax.Array:
    """Return the complete IoU of pairs of boxes: the IoU minus penalties for distance and different proportions.

    Args:
        boxes1: (..., 4).
        boxes2: (..., 4).
        bounding_box_format: format of both; see `convert_format`.
        image_shape: (height, width, channels), for relative formats.

    Returns:
        Numbers (...), float32: 1 for equal boxes.

    Raises:
        ModelError: the format is unknown, or `image_shape` is missing.

    Source: `keras.utils.bounding_boxes.compute_ciou`.
    """
    size = image_size(image_shape, bounding_box_format)
    boxes1 = convert_format(boxes1, bounding_box_format, "xyxy", *size)
    boxes2 = convert_format(boxes2, bounding_box_format, "xyxy", *size)
    low1, high1, low2, high2 = boxes1[..., :2], boxes1[..., 2:], boxes2[..., :2], boxes2[..., 2:]
    (width1, height1), (width2, height2) = _sides(boxes1), _sides(boxes2)
    shared = _shared_areas(boxes1, boxes2)
    together = width1 * height1 + width2 * height2 - shared + epsilon()
    iou = shared / (together + epsilon())
    diagonal = ((jnp.maximum(high1, high2) - jnp.minimum(low1, low2)) ** 2).sum(-1) + epsilon()
    distance = (((low1 + high1) / 2 - (low2 + high2) / 2) ** 2).sum(-1)
    angles = jnp.arctan(width2 / height2) - jnp.arctan(width1 / height1)
    differing = 4 / math.pi**2 * angles**2
    return iou - (distance / diagonal + differing * differing / (differing - iou + (1 + epsilon())))


def _sides(boxes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return widths, and heights, which are never 0."""
    return boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1] + epsilon()


def _shared_areas(boxes1: jax.Array, boxes2: jax.Array) -> jax.Array:
    low, high = jnp.maximum(boxes1[..., :2], boxes2[..., :2]), jnp.minimum(boxes1[..., 2:], boxes2[..., 2:])
    return jnp.maximum(high - low, 0).prod(-1)
