"""Formats, overlaps and deltas of bounding boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_option, shapes
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError, shorten

_Halves: TypeAlias = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""Maps two arrays (..., 2) of x and y to two others, such as lower and upper corners of boxes."""


def _from_center(center: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    return center - size / 2, center + size / 2


def _to_center(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    return low + (high - low) / 2, high - low


_FORMS: dict[str, tuple[_Halves, _Halves]] = {
    "xyxy": (lambda low, high: (low, high), lambda low, high: (low, high)),
    "yxyx": (lambda low, high: (low, high), lambda low, high: (low, high)),
    "xywh": (lambda low, size: (low, low + size), lambda low, high: (low, high - low)),
    "center_xywh": (_from_center, _to_center),
    "center_yxhw": (_from_center, _to_center),
}
"""For each format, conversion of the halves of a box to corners, and of corners to halves."""

_FORMATS = (*_FORMS, *(f"rel_{name}" for name in _FORMS))


def convert_format(
    boxes: Any,
    source: str,
    target: str,
    height: ArrayLike | None = None,
    width: ArrayLike | None = None,
    dtype: DTypeLike = "float32",
) -> Any:
    """Convert boxes to another format.

    Formats, in upper or lower case, are `"xyxy"` (left, top, right, bottom), `"yxyx"` (top, left, bottom, right),
    `"xywh"` (left, top, width, height), `"center_xywh"` (x and y of the center, width, height) and `"center_yxhw"` (y
    and x of the center, height, width) in pixels. The prefix `rel_` stands for fractions of the image size.

    Args:
        boxes: (..., 4); or a dict with them under `"boxes"`, of which a copy with new boxes is returned.
        source: format of `boxes`.
        target: format of the result.
        height: height of the image [pixels], for relative formats; a number, or an array that broadcasts to (..., 1).
        width: width of the image [pixels], in the same form.
        dtype: element type of the computation.

    Returns:
        Boxes of the same shape.

    Raises:
        ModelError: the last dim of `boxes` is not 4, a format is unknown, or height and width are missing.

    Example:
        >>> import numpy as np
        >>> from keras_dist.utils import bounding_boxes
        >>> bounding_boxes.convert_format(np.array([[10, 20, 30, 60]]), "xyxy", "rel_xywh", height=100, width=50)
        Array([[0.2, 0.2, 0.4, 0.4]], dtype=float32)
    """
    if isinstance(boxes, Mapping):
        return {**boxes, "boxes": convert_format(boxes["boxes"], source, target, height, width, dtype)}
    source, target = check_option("source", source, _FORMATS), check_option("target", target, _FORMATS)
    boxes = as_boxes(boxes, dtype)
    is_relative = [name.startswith("rel_") for name in (source, target)]
    if any(is_relative):
        check_has_size(height, width, source, target)
    if source == target:
        return boxes
    size: list[Any] = [side if side is None else jnp.asarray(side, dtype) for side in (width, height)]
    into_corners, from_corners = _FORMS[source.removeprefix("rel_")][0], _FORMS[target.removeprefix("rel_")][1]
    boxes = _halves(into_corners, _in_order(boxes, source))
    if is_relative == [True, False]:
        boxes = of_edges(jnp.multiply, boxes, *size)
    boxes = _halves(from_corners, boxes)
    if is_relative == [False, True]:
        boxes = of_edges(jnp.divide, boxes, *size)
    return _in_order(boxes, target)


def as_boxes(boxes: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """Return boxes as an array with a last dim of 4."""
    found = jnp.asarray(boxes, dtype)
    if found.ndim == 0 or found.shape[-1] != 4:
        fix = "reshape the boxes, or give their coordinates alone"
        raise ModelError("`boxes` must have the shape (..., 4)", given=shapes(boxes=found), fix=fix)
    return found


def check_has_size(height: Any, width: Any, *formats: str) -> None:
    """Check that height and width are given."""
    if height is None or width is None:
        summary = f"boxes must receive `height` and `width` where the format is {' or '.join(map(repr, formats))}"
        given = f"height={shorten(height)}, width={shorten(width)}"
        raise ModelError(summary, given=given, fix="for an image of 480 x 640 pixels add height=480, width=640")


def image_size(image_shape: Sequence[int] | None, *formats: str) -> tuple[int, int] | tuple[None, None]:
    """Return height and width, which relative formats require."""
    if image_shape is not None:
        height, width, *_ = image_shape
        return height, width
    if any(str(name).lower().startswith("rel_") for name in formats):
        given = f"formats {', '.join(map(repr, formats))}, image_shape=None"
        fix = "for an image of 480 x 640 pixels add image_shape=(480, 640, 3)"
        raise ModelError("the `image_shape` argument must be provided where a format is relative", given=given, fix=fix)
    return None, None


def of_edges(function: Callable[..., jax.Array], boxes: jax.Array, x: ArrayLike, y: ArrayLike) -> jax.Array:
    """Apply `function` to the edges of `"xyxy"` boxes and the number `x` or `y` for their direction."""
    edges = zip(jnp.split(boxes, 4, axis=-1), (x, y, x, y), strict=True)
    return jnp.concatenate([function(edge, value) for edge, value in edges], axis=-1)


def areas(boxes: jax.Array) -> jax.Array:
    """Return the areas of `"xyxy"` boxes."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _halves(function: _Halves, boxes: jax.Array) -> jax.Array:
    return jnp.concatenate(function(boxes[..., :2], boxes[..., 2:]), axis=-1)


def _in_order(boxes: jax.Array, name: str) -> jax.Array:
    """Exchange x and y if the format has y before x."""
    return boxes[..., np.array([1, 0, 3, 2])] if name.endswith(("yxyx", "yxhw")) else boxes


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
        boxes1, boxes2: (..., 4).
        bounding_box_format: format of both; see `convert_format`.
        image_shape: (height, width, channels), for relative formats.

    Returns:
        Numbers (...), float32: 1 for equal boxes.

    Raises:
        ModelError: the format is unknown, or `image_shape` is missing.
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
    return boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1] + epsilon()


def _shared_areas(boxes1: jax.Array, boxes2: jax.Array) -> jax.Array:
    low, high = jnp.maximum(boxes1[..., :2], boxes2[..., :2]), jnp.minimum(boxes1[..., 2:], boxes2[..., 2:])
    return jnp.maximum(high - low, 0).prod(-1)


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
        anchor_format, box_format, variance, image_shape: as in `encode_box_to_deltas`.
        encoded_format: order of the deltas, `"center_yxhw"` or `"center_xywh"`.

    Returns:
        Boxes of the shape of the deltas, float32, or a dict by level.

    Raises:
        ModelError: a format is unknown, `image_shape` is missing, or `variance` does not have four numbers.
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
