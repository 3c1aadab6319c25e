"""A training that cannot be begun, or whose save fails, lets others write."""

import errno

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import BackupAndRestore
from keras_dist.checkpoint import CheckpointManager, folder
from keras_dist.errors import CheckpointError

X, Y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


def network(units=1):
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(units, name="d1"), kd.layers.Dense(1, name="d2")])
    model.compile("sgd", loss="mse")
    return model


def fit(model, directory, **arguments):
    backup = BackupAndRestore(directory, delete_checkpoint=False, **arguments)
    return model.fit(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[backup])


def test_the_states_of_another_model_end_the_training_and_hold_no_lock(tmp_path):
    fit(network(), tmp_path)
    with pytest.raises(CheckpointError, match="does not fit") as kept:
        fit(network(units=2), tmp_path)
    assert kept.tb is not None
    CheckpointManager(network(), tmp_path).close()


def test_a_save_without_space_ends_the_training_and_holds_no_lock(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    model = network()
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="No space left") as kept:
        patch.setattr(folder, "write_manifest", fail)
        fit(model, tmp_path)
    assert kept.tb is not None
    assert not any(tmp_path.iterdir())
    assert np.isfinite(model.predict(X, verbose=0)).all()
    fit(model, tmp_path)
    with CheckpointManager(model, tmp_path) as manager:
        assert manager.steps == [4]
