"""`ops.image` gives what Keras gives."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import ops
from keras_dist.errors import ModelError
from tests.ops.agreement import Draws, agree, properties


def images(d, channels=3, dtype="float32", ranks=(3, 4), low=0.0, high=1.0):
    """Images and their data format."""
    form = d.one_of("channels_last", "channels_first")
    shape = (channels, 8, 6) if form == "channels_first" else (8, 6, channels)
    return d.array(shape if d.one_of(*ranks) == 3 else (2, *shape), dtype, low, high), form


def of_images(make, **drawn):
    """A case of images, and the arguments that `make(d, images)` gives."""

    def case(d):
        given, form = images(d, **{name: d.one_of(*values) for name, values in drawn.items()})
        args, kwargs = make(d, given)
        return (given, *args), {**kwargs, "data_format": form, "batch": False}

    return case


def moved(d, given):
    options = {
        "interpolation": d.one_of("nearest", "bilinear"),
        "fill_mode": d.one_of("constant", "nearest", "reflect"),
    }
    transforms = np.array([[0.9, 0.1, 1.5, -0.2, 1.1, -0.5, 0, 0], [0.9, 0, 1, 0, 1.1, -0.5, 0, 0]], "float32")
    return (transforms[0] if given.ndim == 3 else transforms,), options


def seen_from_elsewhere(d, given):
    start = np.array([[0, 0], [0, 7], [5, 0], [5, 7]], "float32")
    start = start if given.ndim == 3 else np.stack([start, start])
    return (start, start + d.array(start.shape, low=-0.5, high=0.5)), {"interpolation": d.one_of("nearest", "bilinear")}


SIZES = {"interpolation": ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5"), "antialias": (False, True)}
CASES = {
    "rgb_to_grayscale": of_images(lambda d, _: ((), {}), channels=(1, 3), dtype=("float32", "uint8")),
    "rgb_to_hsv": of_images(lambda d, _: ((), {})),
    "hsv_to_rgb": of_images(lambda d, _: ((), {})),
    "resize": of_images(
        lambda d, _: (
            (d.one_of((4, 3), (12, 9), (5, 5)),),
            {name: d.one_of(*values) for name, values in SIZES.items()}
            | d.one_of({}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True}),
        ),
        dtype=("float32", "uint8"),
        high=(200,),
    ),
    "affine_transform": of_images(moved),
    "perspective_transform": of_images(seen_from_elsewhere),
    "extract_patches": of_images(
        lambda d, _: (
            (d.one_of(2, (3, 2)),),
            d.one_of({"strides": None}, {"strides": 1, "dilation_rate": 2}) | {"padding": d.one_of("valid", "same")},
        )
    ),
    "extract_patches_3d": lambda d: ((d.array((2, 4, 6, 4, 2)), d.one_of(2, (2, 3, 1))), {"batch": False}),
    "map_coordinates": lambda d: (
        (d.array((4, 5)), d.array((2, 3, 2), low=-1, high=5), d.one_of(0, 1)),
        {"fill_mode": d.one_of("constant", "nearest", "wrap", "mirror", "reflect"), "batch": False},
    ),
    "pad_images": of_images(
        lambda d, _: ((), {"top_padding": 1, "target_height": 10, "left_padding": 2, "right_padding": 1})
    ),
    "crop_images": of_images(
        lambda d, _: ((), {"bottom_cropping": 1, "target_height": 6, "left_cropping": 2, "right_cropping": 1})
    ),
    "gaussian_blur": of_images(lambda d, _: ((), {"kernel_size": d.one_of((3, 3), (5, 3)), "sigma": (1.0, 0.7)})),
    "scale_and_translate": lambda d: (
        (d.array((8, 6, 3)), (6, 6, 3), np.array([0.5, 1.5], "float32"), np.array([1, -1], "float32"), (0, 1)),
        {"method": d.one_of("linear", "cubic", "lanczos3"), "antialias": d.one_of(False, True), "batch": False},
    ),
    "sobel_edges": of_images(lambda d, _: ((), {}), ranks=((4,),)),
    "ssim": lambda d: (
        lambda given, form: (
            (given, given * d.array(given.shape, low=0.5, high=1)),
            {"data_format": form, "filter_size": 5, "batch": False},
        )
    )(*images(d, ranks=(4,))),
}
CASES = {f"image.{name}": case for name, case in CASES.items()}


@properties
@hypothesis.given(data=st.data())
def test_gives_what_keras_gives(keras, data):
    for name, case in CASES.items():
        args, kwargs = case(Draws(data))
        agree(keras, name, *args, **kwargs)


def test_gradients(keras):
    given = np.random.default_rng(0).uniform(size=(2, 8, 6, 3)).astype("float32")
    for name in ("rgb_to_hsv", "hsv_to_rgb", "rgb_to_grayscale", "sobel_edges"):
        agree(keras, f"image.{name}", given, gradients=True, symbolic=False)
    agree(keras, "image.resize", given, (4, 5), gradients=True, symbolic=False)


def test_a_batch_of_unknown_size(keras):
    images = np.zeros((2, 8, 6, 3), "float32")
    for name, args in (("resize", ((4, 4),)), ("extract_patches", (2,)), ("rgb_to_grayscale", ())):
        agree(keras, f"image.{name}", images, *args)


@pytest.mark.parametrize("options", [{"interpolation": "nearest"}, {"fill_mode": "constant"}], ids=str)
def test_pixels_moved_at_random(keras, options):
    images = np.random.default_rng(0).uniform(size=(2, 8, 6, 3)).astype("float32")
    found, expected = (  # Keras cannot trace it
        package.image.elastic_transform(images, alpha=3.0, sigma=1.0, seed=7, **options) for package in (ops, keras.ops)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert ops.image.elastic_transform(kd.Input((8, 6, 3)), seed=7).shape == (None, 8, 6, 3)


def test_a_generator_moves_pixels_otherwise_in_each_call():
    images, generator = (
        np.random.default_rng(0).uniform(size=(1, 8, 6, 1)).astype("float32"),
        kd.random.SeedGenerator(7),
    )
    first, second = (ops.image.elastic_transform(images, seed=generator) for _ in range(2))
    assert np.abs(np.asarray(first - second)).max() > 0.01


PHOTO = np.zeros((8, 6, 3), "float32")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.image.resize(PHOTO[0], (4, 4)), "resize takes images"),
        (lambda: ops.image.resize(PHOTO, (4, 4), interpolation="linear"), "interpolation"),
        (lambda: ops.image.resize(PHOTO, (4, 4), fill_mode="reflect"), "fill_mode"),
        (lambda: ops.image.resize(PHOTO, (4, 4), pad_to_aspect_ratio=True, crop_to_aspect_ratio=True), "pad_to_asp"),
        (lambda: ops.image.pad_images(PHOTO, 1, 1, 1, 1, 9), "height is not determined"),
        (lambda: ops.image.pad_images(PHOTO, 1, 1, target_height=8, right_padding=1), "height does not fit"),
        (lambda: ops.image.crop_images(PHOTO, 0, 5, 0, 5), "width does not fit"),
        (lambda: ops.image.rgb_to_hsv(PHOTO.astype("uint8")), "floats"),
        (lambda: ops.image.rgb_to_hsv(PHOTO[..., :2]), "channels"),
        (lambda: ops.image.affine_transform(PHOTO, np.ones(6)), "the transform must have shape"),
        (lambda: ops.image.perspective_transform(PHOTO, np.ones((3, 2)), np.ones((3, 2))), "four points"),
        (lambda: ops.image.map_coordinates(PHOTO, np.ones((2, 3)), 1), "coordinates must have shape"),
        (lambda: ops.image.map_coordinates(PHOTO, np.ones((3, 3)), 2), "order"),
        (lambda: ops.image.extract_patches(PHOTO, (2,)), "images"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message):
    with pytest.raises(ModelError, match=message):
        call()


def test_sizes_of_another_number_are_a_type_error_as_in_keras():
    with pytest.raises(TypeError, match="extract_patches"):
        ops.image.extract_patches(PHOTO, (2,))
