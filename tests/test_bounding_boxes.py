"""Bounding boxes: what their errors say, and that what is given stays as it is. Numbers: tests/parity."""

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.utils import bounding_boxes

BOXES = np.float32([[0, 0, 2, 4], [1, 1, 3, 3]])
NOT_THREE = np.float32([0.1, 0.1, 0.2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounding_boxes.convert_format(BOXES, "centre_xywh", "xyxy"),
            r"`source` .*did you mean 'center_xywh'.*\n.*centre",
        ),
        (lambda: bounding_boxes.convert_format(BOXES, "xyxy", None), r"`target` .*'rel_center_xywh'.*\n.*None"),
        (
            lambda: bounding_boxes.convert_format(BOXES[:, :3], "xyxy", "xywh"),
            r"`boxes` must have the shape .*\n.*\(2, 3\)",
        ),
        (lambda: bounding_boxes.convert_format(BOXES, "xyxy", "rel_xyxy", height=4), r"`width`.*\n.*height=4, width=N"),
        (lambda: bounding_boxes.clip_to_image_size({"boxes": BOXES}), r"`height` and `width`.* 'xyxy'"),
        (
            lambda: bounding_boxes.clip_to_image_size({"boxes": BOXES}, 4, 4, "xywh"),
            "`bounding_box_format`.*\n.*'xywh'",
        ),
        (lambda: bounding_boxes.crop(BOXES, 0, 0, 2, 2, "yxyx"), "`bounding_box_format`.*\n.*'yxyx'"),
        (lambda: bounding_boxes.compute_iou(BOXES, BOXES, "rel_xyxy"), r"`image_shape`.*\n.*'rel_xyxy'[\s\S]*480"),
        (lambda: bounding_boxes.compute_iou(BOXES, BOXES[0], "xyxy"), r"`boxes2`.*\(batch, N, 4\)"),
        (
            lambda: bounding_boxes.encode_box_to_deltas(BOXES, BOXES, "xyxy", "xyxy", "xywh"),
            "`encoding_format` .*'center_xywh', 'center_yxhw'.*\n.*'xywh'\n",
        ),
        (
            lambda: bounding_boxes.encode_box_to_deltas(BOXES, BOXES, "xyxy", "xyxy", variance=NOT_THREE),
            "`variance` must be four numbers",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ModelError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert caught.value.given
    assert caught.value.fix


def test_dicts_stay_as_they_are():
    given = {"boxes": BOXES, "labels": np.int32([7, 8]), "scores": "kept"}
    clipped = bounding_boxes.clip_to_image_size(given, height=1, width=1)
    converted = bounding_boxes.convert_format(given, "xyxy", "xywh")
    assert given["boxes"] is BOXES
    np.testing.assert_array_equal(clipped["labels"], [7, -1])
    np.testing.assert_array_equal(converted["boxes"], [[0, 0, 2, 4], [1, 1, 2, 2]])
    assert (clipped["scores"], converted["scores"], converted["labels"] is given["labels"]) == ("kept", "kept", True)


def test_sizes_of_images_may_be_traced_and_gradients_are_finite():
    @jax.jit
    @jax.value_and_grad
    def loss(boxes, height, width):
        relative = bounding_boxes.convert_format(boxes, "xyxy", "rel_center_yxhw", height, width)
        deltas = bounding_boxes.encode_box_to_deltas(BOXES, relative, "xyxy", "rel_center_yxhw", image_shape=(8, 4, 3))
        clipped = bounding_boxes.clip_to_image_size({"boxes": boxes}, height, width)["boxes"]
        return (deltas**2).sum() + bounding_boxes.compute_ciou(clipped, BOXES, "xyxy").sum()

    value, gradient = loss(BOXES, 8, 4)
    np.testing.assert_allclose(value, 2, rtol=1e-5)  # boxes are their own anchors
    assert np.isfinite(gradient).all()


def test_is_a_module_of_utils():
    assert kd.utils.bounding_boxes is bounding_boxes
    with pytest.raises(AttributeError, match="no attribute 'compute_giou'"):
        _ = bounding_boxes.compute_giou
