"""Weights in folders of orbax."""

import shutil

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import CheckpointError
from tests.networks import CLASSES, FEATURES, HIDDEN


def network(*more):
    return kd.Sequential(
        [
            kd.Input((FEATURES,)),
            layers.Dense(HIDDEN, name="d1"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5),
            layers.Dense(CLASSES, name="d2"),
            *more,
        ]
    )


@pytest.fixture(scope="module")
def other():
    """What takes weights."""
    return network()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder, and what is in it."""
    path = tmp_path_factory.mktemp("weights") / "model.orbax"
    model = network()
    model.save_weights(path)
    return path, model.get_weights()


def test_no_stream_and_no_slot_is_in_it(saved):
    record = kd.checkpoint.Stored(saved[0]).record
    assert list(record["arrays"]) == [
        f"variables/{name}"
        for name in (
            "d1/kernel",
            "d1/bias",
            "norm/gamma",
            "norm/beta",
            "norm/moving_mean",
            "norm/moving_variance",
            "d2/kernel",
            "d2/bias",
        )
    ]


def test_the_folder_of_a_model_and_of_a_training_give_their_weights(other, tmp_path):
    model = network()
    model.compile("adam", loss="mse")
    model.save(tmp_path / "model")
    with kd.checkpoint.CheckpointManager(model, tmp_path / "states") as manager:
        state = manager.save()
    for path in (tmp_path / "model", state):
        other.set_weights([0 * value for value in other.get_weights()])
        other.load_weights(path)
        np.testing.assert_equal(other.get_weights(), model.get_weights())


def test_a_damaged_folder_and_none_at_all(other, saved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.orbax"):
        other.load_weights(tmp_path / "none.orbax")
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        other.load_weights(tmp_path)
    shutil.copytree(saved[0], tmp_path / "new.orbax")
    file = tmp_path / "new.orbax" / "record.json"
    file.write_bytes(file.read_bytes().replace(b"float32", b"float16", 1))
    with pytest.raises(CheckpointError, match=r"record\.json has other bytes"):
        other.load_weights(tmp_path / "new.orbax")
