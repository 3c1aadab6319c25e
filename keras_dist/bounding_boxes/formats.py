"""Formats of bounding boxes."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_option, shapes
from keras_dist._support.types import ArrayLike, DTypeLike
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

    Source: `keras.utils.bounding_boxes.convert_format`.
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
