"""Layers for images give what those of Keras give: with one seed, the same images transformed in the same way."""

import types
from typing import Any

import grain
import numpy as np
import pytest

import keras_dist as kd
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
]

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("RandomFlip", {}),
    ("RandomFlip", {"mode": "horizontal"}),
    ("RandomFlip", {"mode": "vertical"}),
    ("RandomBrightness", {"factor": 0.4}),
    ("RandomBrightness", {"factor": (0.1, 0.4), "value_range": (0, 100)}),
    ("RandomContrast", {"factor": 0.5}),
    ("RandomContrast", {"factor": (0.4, 0.9), "value_range": (10, 200)}),
]

FIXED: list[tuple[str, dict[str, Any]]] = [
    ("Resizing", {"height": 4, "width": 12}),
    ("Resizing", {"height": 4, "width": 5, "interpolation": "bicubic", "antialias": True}),
    ("Resizing", {"height": 5, "width": 5, "crop_to_aspect_ratio": True, "interpolation": "lanczos3"}),
    ("Resizing", {"height": 5, "width": 5, "pad_to_aspect_ratio": True, "fill_value": 4.0}),
    ("Resizing", {"height": 3, "width": 12, "interpolation": "nearest", "pad_to_aspect_ratio": True}),
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
    for name, options in (*AFFINE, *OTHERS, *FIXED, ("RandomCrop", {"height": 2, "width": 3})):
        config = getattr(keras.layers, name)(**options).get_config()
        restored = getattr(layers, name).from_config(config)
        ours = getattr(layers, name)(**options)
        assert {name: getattr(restored, name) for name in options} == {name: getattr(ours, name) for name in options}


def test_smart_resize(keras: types.ModuleType) -> None:
    images = np.random.default_rng(0).uniform(0, 255, SIZE).astype("float32")
    found = image.smart_resize(images, (4, 4), "bicubic")
    assert isinstance(found, np.ndarray)
    assert_close(found, keras.preprocessing.image.smart_resize(images, (4, 4), "bicubic"))


def test_other_layers_of_keras_run_in_the_data_pipeline(keras: types.ModuleType) -> None:
    images = np.random.default_rng(0).uniform(0, 255, (8, *SIZE[1:])).astype("float32")
    layer = keras.layers.RandomGrayscale(factor=1.0)
    model = kd.Sequential([kd.Input(SIZE[1:]), layers.Flatten(), layers.Dense(2)])
    expected = model.predict(np.asarray(layer(images)), verbose=0)
    assert np.abs(expected - model.predict(images, verbose=0)).max() > 0.1
    batches = kd.utils.split_dataset(images, left_size=7)[0].batch(4).map(layer)
    rows = grain.MapDataset.source(list(images)).map(layer).batch(4)
    np.testing.assert_allclose(model.predict(batches, verbose=0), expected[:7], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(model.predict(rows, verbose=0), expected, rtol=1e-5, atol=1e-3)
