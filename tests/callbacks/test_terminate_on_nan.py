"""`TerminateOnNaN`: when it ends training, what it says, and that the devices never wait for it."""

import math
from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import Callback, LambdaCallback, TerminateOnNaN
from tests import layouts
from tests.networks import Noisy, blobs

X, Y = blobs(24)


@pytest.fixture(scope="module")
def shared():
    with layouts.on("data=4,model=2").scope():
        model = kd.Model.from_nnx(Noisy, seed=0)
    model.compile("sgd", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, model.get_weights()


@pytest.fixture
def model(shared):
    model, start = shared
    model.set_weights(start)
    model.stop_training = False
    return model


def broken(row):
    x = X.copy()
    x[row] = np.nan
    return x


def fit(model, x, *callbacks, **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    before = int(model.state.step)
    history = model.fit(x, Y, callbacks=list(callbacks), **options)
    return history, int(model.state.step) - before


class Break(Callback):
    """Makes a variable infinite after a batch, as an update may."""

    def __init__(self, after, *paths):
        super().__init__()
        self.after = after
        self.paths = paths

    def on_train_batch_end(self, batch, logs: Any = None):
        if batch == self.after:
            for variable in self.model.variables:
                if variable.path in self.paths:
                    value = variable.numpy()
                    value.flat[-1] = np.inf  # on the last device alone
                    variable.assign(value)


@pytest.mark.parametrize(("row", "batch", "steps"), [(1, 0, 2), (9, 1, 3), (23, 2, 3)])
def test_it_ends_training_a_step_after_the_first_batch_whose_loss_is_not_finite(model, capsys, row, batch, steps):
    ended = []
    end = LambdaCallback(on_train_end=lambda logs: ended.append(True))
    history, taken = fit(model, broken(row), TerminateOnNaN(), end, epochs=3)
    assert taken == steps and history.epoch == [0] and ended == [True]
    assert capsys.readouterr().out == (
        f"Batch {batch}: Invalid loss, terminating training. All variables were finite before that: look at the rows.\n"
        "compile(check=True) names a label or token that is out of range.\n"
    )


@pytest.mark.parametrize(
    ("paths", "told"),
    [(["d1/kernel"], "'d1/kernel' had"), (["d2/bias", "d2/kernel", "norm/scale"], "'d2/bias' and 2 others had")],
)
def test_the_variables_that_were_first_are_named(model, capsys, paths, told):
    fit(model, X, Break(0, *paths), TerminateOnNaN())
    assert capsys.readouterr().out == (
        f"Batch 1: Invalid loss, terminating training. The variable {told} values that are not finite before that.\n"
    )


def test_it_can_raise(model):
    ended = []
    end = LambdaCallback(on_train_end=lambda logs: ended.append(True))
    with pytest.raises(RuntimeError, match=r"at batch 1\. Loss value: nan\. Terminating .*\. All variables"):
        fit(model, broken(9), TerminateOnNaN(True), end)
    assert ended == []


def test_it_looks_again_in_the_next_fit(model, capsys):
    callback = TerminateOnNaN()
    for _ in range(2):
        model.set_weights([np.ones(weight.shape, np.float32) for weight in model.weights])
        fit(model, broken(9), callback)
    assert capsys.readouterr().out.count("Batch 1:") == 2


class Unread(dict):
    """Logs that note when they are read."""

    def __init__(self, name, loss, reads):
        super().__init__(loss=loss)
        self.name = name
        self.reads = reads

    def __getitem__(self, name):
        self.reads.append(self.name)
        return super().__getitem__(name)


def drive(model, *executions, raise_error=False):
    """Drive the hooks by hand, with `(first, last, loss)`; which losses had been read after each hook."""
    callback = TerminateOnNaN(raise_error)
    callback.set_model(model)
    callback.on_train_begin()
    reads: list[int] = []
    seen = []
    for first, last, loss in executions:
        callback.on_train_batch_begin(first)
        callback.on_train_batch_end(last, Unread(last, loss, reads))
        seen.append(list(reads))
    callback.on_epoch_end(0, {})
    return [*seen, reads]


def test_a_loss_is_read_when_the_next_step_is_on_its_way(model):
    with jax.transfer_guard_device_to_host("disallow"):
        assert drive(model, (0, 0, 1.0), (1, 1, 0.5), (2, 2, 0.25)) == [[], [0], [0, 1], [0, 1, 2]]
    assert not model.stop_training


def test_several_steps_of_one_execution(model, capsys):
    drive(model, (0, 3, 1.0), (4, 7, math.nan), (8, 11, math.nan))
    assert capsys.readouterr().out.startswith("Batches 4 to 7: Invalid loss") and model.stop_training
    with pytest.raises(RuntimeError, match=r"at batches 0 to 3\. Loss value: inf"):
        drive(model, (0, 3, math.inf), raise_error=True)


@pytest.mark.parametrize("check", [False, True])
def test_a_loss_that_is_nan_names_how_labels_are_found(check):
    model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(3)])
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, check=check)
    x, y = np.ones((8, 4), "float32"), np.array([0, 1, 2, 3] * 2)
    if check:
        with pytest.raises(kd.errors.DataError, match="out of range"):
            model.fit(x, y, verbose=0)
        return
    with pytest.warns(UserWarning, match=r"the loss is nan in epoch 1\. compile\(check=True\) names a label") as found:
        model.fit(x, y, epochs=2, verbose=0)
    assert sum("is nan" in str(each.message) for each in found) == 1
    for method in ("evaluate", "test_on_batch", "train_on_batch"):
        with pytest.warns(
            UserWarning, match=rf"the loss is nan in {method}\. compile\(check=True\) names a label"
        ) as found:
            getattr(model, method)(x, y, **({"verbose": 0} if method == "evaluate" else {}))
        assert len(found) == 1
