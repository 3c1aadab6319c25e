"""Bounding boxes are those of Keras."""

import itertools

import jax
import numpy as np
import pytest

from keras_dist.utils import bounding_boxes

FORMATS = [
    *("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw"),
    *("rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh"),
]
HEIGHT, WIDTH = 48, 96
SHAPE = (HEIGHT, WIDTH, 3)


def boxes_like(form="xyxy", seed=0, shape=(2, 5)):
    """Boxes that lie in the image or partly outside, and overlap."""
    random = np.random.default_rng(seed)
    low = random.uniform(-10, 30, (*shape, 2))
    boxes = np.concatenate([low, low + random.uniform(1, 60, (*shape, 2))], -1).astype("float32")
    return np.asarray(bounding_boxes.convert_format(boxes, "xyxy", form, HEIGHT, WIDTH))


def check(keras, name, *calls):
    """Compare calls (arguments, arguments by keyword) of a function, which compile as one program."""
    ours, theirs = getattr(bounding_boxes, name), getattr(keras.utils.bounding_boxes, name)

    def both(calls):
        return [[function(*args, **kwargs) for args, kwargs in calls] for function in (ours, theirs)]

    arrays, structure = jax.tree.flatten(calls)
    traced = [index for index, leaf in enumerate(arrays) if isinstance(leaf, np.ndarray)]

    def program(values):
        leaves = [values.get(index, leaf) for index, leaf in enumerate(arrays)]
        return both(jax.tree.unflatten(structure, leaves))

    found, expected = jax.jit(program)({index: arrays[index] for index in traced})
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (where, mine), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), where
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5, err_msg=str(where))


def test_convert_format(keras):
    size = {"height": HEIGHT, "width": WIDTH}
    calls = [((boxes_like(one), one, other), size) for one, other in itertools.product(FORMATS, FORMATS)]
    labelled = {"boxes": boxes_like(), "labels": np.arange(10).reshape(2, 5)}
    sizes = {"height": np.full((2, 1, 1), 40.0, "float32"), "width": np.full((2, 1, 1), 20.0, "float32")}
    calls += [
        ((boxes_like(shape=()), "XYXY", "center_xyWH"), {}),
        ((boxes_like().astype("int32"), "xyxy", "center_xywh"), {"dtype": "int32"}),
        ((boxes_like(), "xyxy", "rel_xywh"), sizes | {"dtype": "bfloat16"}),
        ((labelled, "xyxy", "xywh"), {}),
    ]
    check(keras, "convert_format", *calls)


def test_clip_to_image_size(keras):
    labels = np.arange(10, dtype="int32").reshape(2, 5)
    boxes = boxes_like().copy()
    boxes[0, 0] = -5, -5, -1, -1
    inside = {"boxes": boxes, "labels": labels, "scores": labels}
    relative = {"boxes": boxes / np.float32([WIDTH, HEIGHT, WIDTH, HEIGHT]), "labels": labels.astype("float32")}
    check(
        keras,
        "clip_to_image_size",
        ((inside, HEIGHT, WIDTH), {}),
        (({"boxes": boxes.astype("int32")},), {"height": HEIGHT, "width": WIDTH}),
        ((relative,), {"bounding_box_format": "rel_xyxy"}),
    )


@pytest.mark.parametrize("name", ["crop", "pad"])
def test_crop_and_pad(keras, name):
    boxes = boxes_like()
    calls = [(each, 3, 5, 20, 30) for each in (boxes, boxes[0], boxes.astype("int32"))]
    check(keras, name, *((call, {}) for call in [*calls, (boxes, np.float32(1.5), 0.5, 20.5, 30)]))


def test_affine_transform(keras):
    numbers = [np.float32(each) for each in ([20, -70], [0.1, -0.2], [0.3, 0.1], [1.5, 0.5], [10, -5], [-3, 12])]
    check(
        keras,
        "affine_transform",
        ((boxes_like(), *numbers, HEIGHT, WIDTH), {}),
        ((boxes_like(), *numbers, HEIGHT, WIDTH), {"center_x": 0.2, "center_y": np.float32([0.9, 0.4])}),
    )


def test_affine_transform_of_one_image():
    """Which Keras describes, and refuses."""
    numbers, boxes = (20.0, 0.1, 0.3, 1.5, 10.0, -3.0, HEIGHT, WIDTH), boxes_like()
    transform = jax.jit(bounding_boxes.affine_transform)
    of_all = transform(boxes, *(np.full(2, each, "float32") for each in numbers[:6]), *numbers[6:])
    np.testing.assert_allclose(transform(boxes[0], *numbers), of_all[0], rtol=1e-4, atol=1e-4)


def test_deltas(keras):
    encodings = itertools.product(("center_yxhw", "center_xywh"), (None, [0.1, 0.1, 0.2, 0.3]))
    for (encoding, variance), form in zip(
        encodings, ("xyxy", "center_yxhw", "rel_xyxy", "rel_center_xywh"), strict=True
    ):
        anchors, boxes = boxes_like(form, 1, (5,)), boxes_like("rel_xywh")
        told = {"variance": variance, "image_shape": SHAPE}
        check(
            keras,
            "encode_box_to_deltas",
            ((anchors, boxes, form, "rel_xywh", encoding), told),
            ((anchors, boxes[0], form, "rel_xywh"), told),
        )
        deltas = np.array(bounding_boxes.encode_box_to_deltas(anchors, boxes, form, "rel_xywh", encoding, **told))
        check(
            keras,
            "decode_deltas_to_boxes",
            ((anchors, deltas, form, "rel_xywh", encoding), told),
            (({"P3": anchors, "P4": anchors}, {"P3": deltas, "P4": deltas[0]}, form, "rel_yxyx", encoding), told),
        )
        again = bounding_boxes.decode_deltas_to_boxes(anchors, deltas, form, "rel_xywh", encoding, **told)
        np.testing.assert_allclose(again, boxes, rtol=1e-3, atol=1e-4)


def test_compute_iou(keras):
    calls = [
        ((boxes_like(form, 0, one), boxes_like(form, 1, other), form), {"image_shape": SHAPE})
        for form, (one, other) in zip(FORMATS, itertools.cycle(itertools.product(((2, 5), (5,)), ((2, 3), (3,)))))
    ]
    padded = np.concatenate([boxes_like(), -np.ones((2, 2, 4), "float32")], 1)
    nothing = np.zeros((2, 4), "float32")
    calls += [
        ((padded, padded[:, 2:], "xyxy"), {"use_masking": True}),
        ((padded[0], padded[1], "yxyx"), {"use_masking": True, "mask_val": -3}),
        ((nothing, nothing, "xyxy"), {}),
    ]
    check(keras, "compute_iou", *calls)


def test_compute_ciou(keras):
    absolute = [name for name in FORMATS if not name.startswith("rel_")]
    calls = [((boxes_like(form, 0), boxes_like(form, 1), form), {}) for form in absolute]
    nothing = np.zeros((2, 4), "float32")
    calls += [((boxes_like(), boxes_like(shape=(5,), seed=1), "xyxy"), {}), ((nothing, nothing, "xyxy"), {})]
    check(keras, "compute_ciou", *calls)


def test_compute_ciou_of_relative_formats():
    """Which Keras refuses, with `image_shape`, too."""
    found, expected = (
        bounding_boxes.compute_ciou(boxes_like(form), boxes_like(form, 1), form, image_shape=SHAPE)
        for form in ("rel_xyxy", "xyxy")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
