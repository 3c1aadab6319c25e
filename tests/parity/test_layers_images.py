"""Layers for images give what those of Keras give: with one seed, the same images transformed in the same way."""

import types
from typing import Any

import numpy as np
import pytest

from keras_dist import layers
from keras_dist.preprocessing import image
from tests.parity.compare import assert_close, compare_layers, one_program

SIZE = (3, 6, 9, 3)

AFFINE: list[tuple[str, dict[str, Any]]] = [
    ("RandomRotation", {"factor": 0.2}),
    ("RandomRotation", {"factor": (0.25, 0.25), "interpolation": "nearest", "fill_mode": "nearest"}),
    ("RandomZoom", {"height_factor": (-0.4, 0.3), "fill_mode": "wrap"}),
    ("RandomZoom", {"height_factor": 0.2, "width_factor": 0.6, "fill_mode": "constant", "fill_value": 7.0}),
    ("RandomTranslation", {"height_factor": 0.3, "width_factor": (-0.2, 0.6)}),
    ("RandomTranslation", {"height_factor": 0.3, "width_factor": 0.2, "interpolation": "nearest"}),
    ("RandomPerspective", {"factor": (0.5, 0.9), "scale": 0.6, "fill_value": 3.0}),
    ("RandomShear", {"x_factor": 0.3, "y_factor": (0.1, 0.2)}),
]

ELASTIC: list[tuple[str, dict[str, Any]]] = [
    ("RandomElasticTransform", {"factor": (0.6, 0.8), "interpolation": "nearest"}),
    ("RandomElasticTransform", {"factor": (0.9, 1.0), "scale": (0.7, 0.9), "fill_mode": "constant", "fill_value": 3.0}),
    ("RandomElasticTransform", {"scale": 0.4, "value_range": (0, 90)}),
]

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("RandomFlip", {}),
    ("RandomFlip", {"mode": "horizontal"}),
    ("RandomFlip", {"mode": "vertical"}),
    ("RandomBrightness", {"factor": 0.4}),
    ("RandomBrightness", {"factor": (0.1, 0.4), "value_range": (0, 100)}),
    ("RandomContrast", {"factor": 0.5}),
    ("RandomContrast", {"factor": (0.4, 0.9), "value_range": (10, 200)}),
    ("RandomColorDegeneration", {"factor": (0.2, 0.9)}),
    ("RandomGrayscale", {"factor": 0.6}),
    ("RandomInvert", {"factor": (0.3, 0.8)}),
    ("RandomHue", {"factor": (0.3, 0.8)}),
    ("RandomColorJitter", {"brightness_factor": 0.2, "contrast_factor": 0.3, "hue_factor": 0.4}),
    ("RandomSaturation", {"factor": (0.4, 0.6)}),
    ("RandomSharpness", {"factor": (0.1, 0.9)}),
    ("RandomPosterization", {"factor": (2, 7), "value_range": (0, 100)}),
    ("RandomGaussianBlur", {"factor": (0.4, 0.8), "kernel_size": (5, 3), "sigma": (0.4, 0.9)}),
    ("RandomErasing", {"factor": (0.6, 0.9)}),
    ("RandomErasing", {"fill_value": 7.0}),
    ("Solarization", {"addition_factor": (0.1, 0.3), "threshold_factor": 0.6}),
]

CLAHE = "ContrastLimitedAdaptiveHistogramEqualization"
FIXED: list[tuple[str, dict[str, Any]]] = [
    ("Resizing", {"height": 4, "width": 12}),
    ("Resizing", {"height": 4, "width": 5, "interpolation": "bicubic", "antialias": True}),
    ("Resizing", {"height": 5, "width": 5, "crop_to_aspect_ratio": True, "interpolation": "lanczos3"}),
    ("Resizing", {"height": 5, "width": 5, "pad_to_aspect_ratio": True, "fill_value": 4.0}),
    ("Resizing", {"height": 3, "width": 12, "interpolation": "nearest", "pad_to_aspect_ratio": True}),
    ("AutoContrast", {}),
    ("Equalization", {"bins": 60, "value_range": (0, 300)}),
    (CLAHE, {}),
    (CLAHE, {"value_range": (0, 300), "tile_grid_size": (4, 2), "clip_limit": 0.5}),
    (CLAHE, {"tile_grid_size": (2, 3), "clip_limit": 0.0}),
    ("CenterCrop", {"height": 3, "width": 4}),
    ("CenterCrop", {"height": 8, "width": 4}),
]


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("cases", [AFFINE, OTHERS, FIXED], ids=["affine", "others", "fixed"])
def test_as_in_keras(keras: types.ModuleType, cases: list[tuple[str, dict[str, Any]]], data_format: str) -> None:
    images = np.random.default_rng(0).uniform(0, 255, SIZE).astype("float32")
    images = images if data_format == "channels_last" else np.moveaxis(images, -1, 1)
    with one_program():
        for name, options in cases if data_format == "channels_last" else cases[::3]:
            options = {**options, "data_format": data_format} | ({} if cases is FIXED else {"seed": 11})
            pair = (getattr(keras.layers, name)(**options), getattr(layers, name)(**options))
            compare_layers(keras, *pair, images, training=True, calls=2 if cases is OTHERS else 1)


@pytest.mark.parametrize(("name", "options"), ELASTIC)
def test_distorted_as_in_keras(keras: types.ModuleType, name: str, options: dict[str, Any]) -> None:
    """Outside of compiled functions, where Keras cannot; see tests/layers/test_images.py for ours."""
    images = np.random.default_rng(0).uniform(0, 255, (3, 40, 36, 2)).astype("float32")
    for data_format in ("channels_last", "channels_first") if "fill_mode" in options else ("channels_last",):
        theirs, ours = (getattr(of, name)(**options, seed=6, data_format=data_format) for of in (keras.layers, layers))
        expected, found = (layer(images, training=True) for layer in (theirs, ours))
        changed = np.abs(np.asarray(expected) - images.clip(*ours.value_range)).max((1, 2, 3)) > 1
        assert changed.any()
        np.testing.assert_allclose(found, expected, atol=0.01)
        images = np.moveaxis(images, -1, 1)


@pytest.mark.parametrize("size", [(4, 5), (8, 4), (6, 9)])
def test_crops_as_in_keras(keras: types.ModuleType, size: tuple[int, int]) -> None:
    images = np.random.default_rng(0).uniform(0, 255, SIZE).astype("float32")
    theirs, ours = keras.layers.RandomCrop(*size, seed=3), layers.RandomCrop(*size, seed=3)
    for training in (True, False, True):
        assert_close(ours(images, training=training), theirs(images, training=training))


def test_integers_are_resized_to_integers(keras: types.ModuleType) -> None:
    images = np.random.default_rng(0).integers(0, 256, SIZE).astype("uint8")
    for options in ({}, {"interpolation": "bicubic"}, {"pad_to_aspect_ratio": True}):
        theirs, ours = keras.layers.Resizing(4, 4, **options), layers.Resizing(4, 4, **options)
        assert ours(images).dtype == "uint8"
        np.testing.assert_array_equal(ours(images), theirs(images))


def test_configs_of_keras(keras: types.ModuleType) -> None:
    for name, options in (*AFFINE, *ELASTIC, *OTHERS, *FIXED, ("RandomCrop", {"height": 2, "width": 3})):
        config = getattr(keras.layers, name)(**options).get_config()
        restored = getattr(layers, name).from_config(config)
        ours = getattr(layers, name)(**options)
        assert {name: getattr(restored, name) for name in options} == {name: getattr(ours, name) for name in options}


def test_smart_resize(keras: types.ModuleType) -> None:
    images = np.random.default_rng(0).uniform(0, 255, SIZE).astype("float32")
    found = image.smart_resize(images, (4, 4), "bicubic")
    assert isinstance(found, np.ndarray)
    assert_close(found, keras.preprocessing.image.smart_resize(images, (4, 4), "bicubic"))


@pytest.mark.filterwarnings("ignore:.*Explicitly requested dtype")  # by Keras
@pytest.mark.parametrize("make", [layers.MixUp, layers.CutMix])
def test_labels_are_mixed_as_their_images(keras: types.ModuleType, make: Any) -> None:
    images = np.random.default_rng(0).uniform(0, 255, SIZE).astype("float32")
    data = {"images": images, "labels": np.eye(3, dtype="float32"), "segmentation_masks": images[..., :1]}
    found = make(seed=3)(dict(data))
    theirs = getattr(keras.layers, make.__name__)(seed=3)({name: data[name] for name in ("images", "labels")})
    for name, part in theirs.items():
        np.testing.assert_allclose(found[name], part, rtol=1e-5)
    np.testing.assert_allclose(found["segmentation_masks"], found["images"][..., :1], rtol=1e-5)
    assert np.abs(found["labels"] - data["labels"]).max() > 0.01
    kept = make()(dict(data), training=False)
    np.testing.assert_array_equal(kept["labels"], data["labels"])
    assert make()(images[0]).shape == images[0].shape
