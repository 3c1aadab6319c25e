"""Bounding boxes as differences from anchors, which networks predict."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, check_option
from keras_dist._support.types import ArrayLike
from keras_dist.bounding_boxes.formats import convert_format, image_size
from keras_dist.config.settings import epsilon

_CENTERED = ("center_xywh", "center_yxhw")


def encode_box_to_deltas(
    anchors: Any,
    boxes: Any,
    anchor_format: str,
    box_format: str,
    encoding_format: str = "center_yxhw",
    variance: ArrayLike | None = None,
    image_shape: Sequence[int] | None = None,
) -> jax.Array:
    """Encode boxes as deltas: distances of centers relative to anchor sizes, and logarithms of size ratios.

    Args:
        anchors: (N, 4).
        boxes: (N, 4) or (batch, N, 4).
        anchor_format: format of `anchors`; see `convert_format`.
        box_format: format of `boxes`.
        encoding_format: order of the deltas, `"center_yxhw"` or `"center_xywh"`.
        variance: four numbers by which deltas are divided.
        image_shape: (height, width, channels), for relative formats.

    Returns:
        Deltas of the shape of `boxes`, float32.

    Raises:
        ModelError: a format is unknown, `image_shape` is missing, or `variance` does not have four numbers.

    Source: `keras.utils.bounding_boxes.encode_box_to_deltas`.
    """
    factors = _variances(variance)
    check_option("encoding_format", encoding_format, _CENTERED)
    size = image_size(image_shape, anchor_format, box_format)
    anchors = convert_format(anchors, anchor_format, encoding_format, *size)
    boxes = convert_format(boxes, box_format, encoding_format, *size)
    of_anchors, of_boxes = (jnp.maximum(each[..., 2:], epsilon()) for each in (anchors, boxes))
    centers = (boxes[..., :2] - anchors[..., :2]) / of_anchors
    return jnp.concatenate([centers, jnp.log(of_boxes / of_anchors)], axis=-1) / factors


def decode_deltas_to_boxes(
    anchors: Any,
    boxes_delta: Any,
    anchor_format: str,
    box_format: str,
    encoded_format: str = "center_yxhw",
    variance: ArrayLike | None = None,
    image_shape: Sequence[int] | None = None,
) -> Any:
    """Decode the deltas of `encode_box_to_deltas` to boxes.

    Args:
        anchors: (N, 4), or a dict of such arrays by level.
        boxes_delta: (N, 4) or (batch, N, 4), or a dict by level.
        anchor_format: format of `anchors`; see `convert_format`.
        box_format: format of the result.
        encoded_format: order of the deltas, `"center_yxhw"` or `"center_xywh"`.
        variance: four numbers by which deltas are multiplied.
        image_shape: (height, width, channels), for relative formats.

    Returns:
        Boxes of the shape of the deltas, float32, or a dict by level.

    Raises:
        ModelError: a format is unknown, `image_shape` is missing, or `variance` does not have four numbers.

    Source: `keras.utils.bounding_boxes.decode_deltas_to_boxes`.
    """
    if isinstance(anchors, Mapping) and isinstance(boxes_delta, Mapping):
        options = (anchor_format, box_format, encoded_format, variance, image_shape)
        return {level: decode_deltas_to_boxes(each, boxes_delta[level], *options) for level, each in anchors.items()}
    deltas = jnp.asarray(boxes_delta) * _variances(variance)
    check_option("encoded_format", encoded_format, _CENTERED)
    size = image_size(image_shape, anchor_format, box_format)
    anchors = convert_format(anchors, anchor_format, encoded_format, *size)
    centers = deltas[..., :2] * anchors[..., 2:] + anchors[..., :2]
    boxes = jnp.concatenate([centers, jnp.exp(deltas[..., 2:]) * anchors[..., 2:]], axis=-1)
    return convert_format(boxes, encoded_format, box_format, *size)


def _variances(variance: ArrayLike | None) -> jax.Array:
    found = jnp.ones(4) if variance is None else jnp.asarray(variance, "float32")
    if found.shape[-1:] != (4,):
        raise argument_error("variance", variance, "four numbers", example=[0.1, 0.1, 0.2, 0.2])
    return found
