"""One training at a time: other threads may look, callbacks may train."""

import threading
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from tests import layouts
from tests.networks import LOSS, Plain, blobs

X, Y = blobs(40)


class During(kd.callbacks.Callback):
    """Does something once after the first batch, and keeps what it raised."""

    def __init__(self, action):
        super().__init__()
        self.action, self.done = action, False
        self.result: Any = None

    def on_train_batch_end(self, batch, logs=None):
        if not self.done:
            self.done = True
            try:
                self.result = self.action()
            except ModelError as error:
                self.result = error


def in_a_thread(action):
    """What `action` returned or raised in another thread."""
    found: list[Any] = []

    def run():
        try:
            found.append(action())
        except ModelError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
def test_a_second_training_in_another_thread_is_refused(model, method):
    second = During(lambda: in_a_thread(lambda: getattr(model, method)(X, Y)))
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=second)
    assert isinstance(second.result, ModelError) and "training in another thread" in str(second.result)
    assert second.result.given and second.result.fix
    assert int(model.state.step) == 5
    assert np.isfinite(in_a_thread(lambda: model.train_on_batch(X, Y))).all()


@pytest.mark.parametrize(
    "action",
    [
        lambda model: model.fit(X, Y, verbose=0).history["loss"],
        lambda model: model.train_on_batch(X, Y),
        lambda model: model.evaluate(X, Y, verbose=0),
        lambda model: model.predict(X, verbose=0),
    ],
    ids=["fit", "train_on_batch", "evaluate", "predict"],
)
def test_a_callback_may_use_its_own_model(model, action):
    nested = During(lambda: action(model))
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=nested)
    assert np.isfinite(nested.result).all()


@pytest.mark.filterwarnings("ignore:the loss is nan")
@pytest.mark.parametrize("method", ["add", "pop"])
def test_layers_are_not_added_or_removed_while_fit_runs(method):
    model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(3), kd.layers.Dense(3)])
    model.compile("sgd", LOSS)
    callback = During(lambda: model.pop() if method == "pop" else model.add(kd.layers.Dense(3)))
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=callback)
    assert isinstance(callback.result, ModelError) and f"{method}: fit is running" in str(callback.result)
    assert len(model.layers) == 2


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("method", ["compile", "redistribute"])
def test_what_changes_the_steps_is_refused_while_fit_runs(method):
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("adam", loss=LOSS)
    actions = {
        "compile": lambda: model.compile("sgd", loss=LOSS),
        "redistribute": lambda: model.redistribute(layouts.on("fully data=8")),
    }
    callback = During(actions[method])
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=callback)
    assert isinstance(callback.result, ModelError) and f"{method}: fit is running" in str(callback.result)
    actions[method]()
    assert np.isfinite(model.train_on_batch(X, Y))


class TestSaving:
    """States of a model that other threads train."""

    @pytest.fixture
    def manager(self, model, tmp_path):
        with kd.checkpoint.CheckpointManager(model, tmp_path / "states", keep=None) as manager:
            yield manager

    def test_from_another_thread_is_refused_while_fit_runs(self, model, manager):
        saving = During(lambda: in_a_thread(manager.save))
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=saving)
        assert isinstance(saving.result, ModelError) and "fit is running" in str(saving.result)
        assert saving.result.given and saving.result.fix
        assert manager.steps == []
        assert in_a_thread(manager.save) == manager.latest_checkpoint
        assert manager.steps == [5]

    def test_a_nested_training_leaves_the_outer_one_to_its_thread(self, model, manager):
        def train_and_save():
            model.fit(X, Y, verbose=0)
            return in_a_thread(manager.save)

        saving = During(train_and_save)
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=saving)
        assert isinstance(saving.result, ModelError) and "fit is running" in str(saving.result)


@pytest.mark.slow
def test_get_weights_does_not_mix_two_steps_of_another_thread(model, monkeypatch):
    model.train_on_batch(X[:8], Y[:8])  # compiles
    before = model.get_weights()
    trainings: list[threading.Thread] = []
    numpy = type(model.weights[0]).numpy

    def interleaved(variable):
        value = numpy(variable)
        if not trainings:  # between the first array and the others
            trainings.append(threading.Thread(target=lambda: model.train_on_batch(X[:8], Y[:8])))
            trainings[0].start()
            trainings[0].join(2)
        return value

    monkeypatch.setattr(type(model.weights[0]), "numpy", interleaved)
    found = model.get_weights()
    trainings[0].join()
    assert all(np.array_equal(one, other) for one, other in zip(found, before, strict=True))
    assert not any(np.array_equal(one, other) for one, other in zip(model.get_weights(), before, strict=True))


def test_a_variable_is_printed_while_another_thread_trains(model):
    kernel, has_ended = model.weights[0], threading.Event()

    def prints():
        shown = set()
        while not has_ended.is_set():
            shown.add(repr(kernel))
        return shown

    found: list[Any] = []
    printing = threading.Thread(target=lambda: found.append(in_a_thread(prints)))
    printing.start()
    model.fit(X, Y, batch_size=8, epochs=20, verbose=0)
    has_ended.set()
    printing.join()
    assert len(found[0]) > 1
