"""`OrbaxCheckpoint`: what its directory holds, and what reads it."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import EarlyStopping, OrbaxCheckpoint
from keras_dist.errors import CheckpointError, ModelError
from tests import layouts

X, Y = np.ones((8, 4), "float32"), np.zeros((8, 2), "float32")

RULES = {"dense/kernel": ("model", None)}


def made(mesh):
    with layouts.on(mesh, RULES).scope():
        model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
    model.compile("adam", loss="mse")
    return model


def fit(model, callback, epochs=2):
    model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=[callback])


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def weights(model):
    return [*model.get_weights(), *(variable.numpy() for variable in model.optimizer.variables)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("in_background", [False, True])
def test_load_model_reads_the_newest_state_on_another_mesh(tmp_path, in_background):
    model = made("data=4,model=2")
    fit(model, OrbaxCheckpoint(tmp_path, max_to_keep=2, save_on_background=in_background), epochs=3)
    assert names(tmp_path) == ["step_00000004", "step_00000006"]
    with layouts.on("data=2,model=4", RULES).scope():
        loaded = kd.saving.load_model(tmp_path)
    for mine, theirs in zip(weights(model), weights(loaded), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert int(loaded.optimizer.iterations) == 6
    fit(loaded, OrbaxCheckpoint(tmp_path, save_freq=1, max_to_keep=None), epochs=1)  # it goes on in the directory
    assert names(tmp_path)[-2:] == ["step_00000007", "step_00000008"]


def test_weights_alone(tmp_path):
    model = made("data=4,model=2")
    fit(model, OrbaxCheckpoint(tmp_path, save_weights_only=True))
    other = made("data=2,model=4")
    other.load_weights(tmp_path)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(CheckpointError, match="and no model"):
        kd.saving.load_model(tmp_path)


def test_only_what_is_better(tmp_path):
    model = made("data=4,model=2")
    fit(model, OrbaxCheckpoint(tmp_path, monitor="loss", mode="max", save_best_only=True), epochs=3)
    assert names(tmp_path) == ["step_00000002"]  # the loss falls


def test_what_it_refuses(tmp_path):
    with pytest.raises(ModelError, match="save_freq"):
        OrbaxCheckpoint(tmp_path, save_freq="never")
    with pytest.raises(CheckpointError, match="max_to_keep"):
        OrbaxCheckpoint(tmp_path, max_to_keep=0)


def test_hooks_by_hand_on_a_model_without_weights():
    stopper = EarlyStopping(monitor="loss", patience=1)
    stopper.set_model(kd.Sequential())
    stopper.on_train_begin()
    stopper.on_epoch_end(0, {"loss": 1.0})
    assert not stopper.model.stop_training
    assert stopper.monitor_op is kd.ops.less
    stopper.on_epoch_end(1, {"loss": 2.0})
    assert stopper.model.stop_training
    stopper.mode = "max"
    stopper.on_train_begin()
    assert stopper.monitor_op is kd.ops.greater


def test_what_was_set_before_the_weights_ends_no_fit():
    model = kd.Sequential([kd.layers.Dense(2)])
    model.compile("sgd", loss="mse")
    model.stop_training = True
    assert len(model.fit(X, Y, batch_size=4, epochs=2, verbose=0).epoch) == 2
