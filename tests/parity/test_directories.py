"""Datasets of folders against those of Keras in the format "grain"."""

import os

import numpy as np
import pytest

from keras_dist import utils

Image = pytest.importorskip("PIL.Image")

CASES = [
    {},
    {"label_mode": "categorical", "interpolation": "bicubic"},
    {"color_mode": "grayscale", "crop_to_aspect_ratio": True},
    {"color_mode": "rgba", "pad_to_aspect_ratio": True, "data_format": "channels_first"},
    {"labels": None, "interpolation": "nearest"},
    {"class_names": ["emu", "cat"], "label_mode": "binary", "interpolation": "lanczos3"},
    {"validation_split": 0.3, "subset": "both"},
]


def test_images(keras, tmp_path):
    random = np.random.default_rng(0)
    for name in ("cat", "dog", "emu"):
        (tmp_path / name).mkdir()
        for _ in range(3):  # of one size: Keras compiles for each
            Image.fromarray(random.integers(0, 256, (9, 14, 3)).astype("uint8")).save(tmp_path / name / f"{_}.png")
    for options in CASES:
        given = {"image_size": (6, 7), "batch_size": 4, "seed": 3, "verbose": False, "shuffle": False, **options}
        theirs = keras.utils.image_dataset_from_directory(str(tmp_path), format="grain", **given)
        ours = utils.image_dataset_from_directory(tmp_path, **given)
        pairs = zip(theirs, ours, strict=True) if isinstance(ours, list) else [(theirs, ours)]
        for expected, found in pairs:
            assert found.class_names == expected.class_names
            assert [*map(os.path.normpath, found.file_paths)] == [*map(os.path.normpath, expected.file_paths)]
            for a, b in zip(found, expected, strict=True):
                for ours_part, theirs_part in zip(*(x if isinstance(x, tuple) else (x,) for x in (a, b)), strict=True):
                    assert ours_part.dtype == np.asarray(theirs_part).dtype
                    np.testing.assert_allclose(ours_part, np.asarray(theirs_part), rtol=1e-5, atol=1e-3)
    shuffled = [
        lib.image_dataset_from_directory(str(tmp_path), seed=7, verbose=False, format="grain").file_paths
        for lib in (keras.utils, utils)
    ]
    assert [*map(os.path.normpath, shuffled[0])] == [*map(os.path.normpath, shuffled[1])]


def test_windows(keras):
    steps = np.arange(40, dtype="float32").reshape(20, 2)
    for options in ({}, {"sequence_stride": 3, "sampling_rate": 2}, {"start_index": 2, "end_index": 15}):
        given = {"sequence_length": 4, "batch_size": 3, **options}
        for targets in (None, np.arange(12)):
            theirs = keras.utils.timeseries_dataset_from_array(steps, targets, format="grain", **given)
            ours = utils.timeseries_dataset_from_array(steps, targets, **given)
            for a, b in zip(ours, theirs, strict=True):
                for ours_part, theirs_part in zip(*(x if isinstance(x, tuple) else (x,) for x in (a, b)), strict=True):
                    np.testing.assert_array_equal(ours_part, np.asarray(theirs_part))
