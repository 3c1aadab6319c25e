"""The protocol of callbacks: which hooks, in which order, with which logs, and at what price."""

import io
from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import Callback, History, ProgbarLogger
from tests import layouts
from tests.networks import Plain, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = blobs(24)


@pytest.fixture(scope="module")
def model():
    with layouts.on("data=4,model=2").scope():
        model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=LOSS, metrics=["accuracy"])
    return model


class Recorder(Callback):
    """Notes every hook with its number and the names in its logs, without reading them."""

    def __init__(self, calls=None, name=""):
        super().__init__()
        self.calls = [] if calls is None else calls
        self.name = name

    def __getattribute__(self, attribute):
        if not attribute.startswith("on_"):
            return super().__getattribute__(attribute)

        def hook(*args):
            *number, logs = args
            self.calls.append((self.name + attribute, *number, None if logs is None else list(logs)))

        return hook


NAMES, VAL_NAMES = ["loss", "accuracy"], ["val_loss", "val_accuracy"]


def batches(mode, count):
    logs = None if mode == "predict" else NAMES
    return [
        call
        for batch in range(count)
        for call in ((f"on_{mode}_batch_begin", batch, None), (f"on_{mode}_batch_end", batch, logs))
    ]


def test_the_hooks_of_fit_in_order(model):
    recorder = Recorder()
    model.fit(X, Y, batch_size=16, epochs=2, validation_data=(X[:8], Y[:8]), verbose=0, callbacks=[recorder])
    expected = [("on_train_begin", None)]
    for epoch in range(2):
        expected += [
            ("on_epoch_begin", epoch, None),
            *batches("train", 2),
            ("on_test_begin", None),
            *batches("test", 1),
            ("on_test_end", NAMES),
            ("on_epoch_end", epoch, NAMES + VAL_NAMES),
        ]
    assert recorder.calls == [*expected, ("on_train_end", NAMES + VAL_NAMES)]


def test_the_hooks_of_evaluate_and_predict_in_order(model):
    recorder = Recorder()
    model.evaluate(X, Y, batch_size=16, verbose=0, callbacks=recorder)
    assert recorder.calls == [("on_test_begin", None), *batches("test", 2), ("on_test_end", NAMES)]
    recorder.calls.clear()
    model.predict(X, batch_size=16, verbose=0, callbacks=[recorder])
    assert recorder.calls == [("on_predict_begin", None), *batches("predict", 2), ("on_predict_end", None)]


def test_several_callbacks_are_called_in_the_order_given(model):
    calls = []
    model.fit(X, Y, verbose=0, callbacks=[Recorder(calls, "first "), Recorder(calls, "second ")])
    assert [name.split()[0] for name, *_ in calls] == ["first", "second"] * (len(calls) // 2)
    assert len(calls) == 12


def test_they_get_the_model_and_the_parameters_of_the_call(model):
    callback = Callback()
    model.fit(X, Y, batch_size=10, epochs=3, verbose=0, callbacks=[callback])
    assert callback.model is model
    assert callback.params == {"epochs": 3, "steps": 3, "verbose": 0}


def test_any_iterable_of_callbacks_or_one_alone(model):
    for callbacks in (Recorder(), (Recorder(),), iter([Recorder()])):
        model.fit(X, Y, verbose=0, callbacks=callbacks)


class TestLogs:
    @pytest.fixture
    def fetches(self, monkeypatch):
        """The fetches from the device, as they happen."""
        found = []
        real = jax.device_get
        monkeypatch.setattr(jax, "device_get", lambda tree: found.append(tree) or real(tree))
        return found

    def test_a_callback_that_does_not_read_them_costs_no_fetch(self, model, fetches):
        counts = []

        class Last(Callback):
            def on_epoch_end(self, epoch, logs: Any = None):
                counts.append(len(fetches))

        with jax.transfer_guard_device_to_host("disallow"):
            model.fit(X, Y, batch_size=4, verbose=0, callbacks=[Recorder(), Last()])
        assert counts == [0], "none by the end of the first epoch"
        assert len(fetches) == 1, "History reads them once"

    def test_reading_them_fetches_once_for_all_names(self, model, fetches):
        class Reading(Callback):
            def on_train_batch_end(self, batch, logs: Any = None):
                for name in logs:
                    assert logs[name] == logs[name]

        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Reading()])
        assert len(fetches) == 3 + 1

    def test_they_are_a_read_only_mapping_of_floats(self, model):
        class Look(Callback):
            def on_train_batch_end(self, batch, logs: Any = None):
                seen.append((dict(logs), len(logs), "loss" in logs, "nothing" in logs, logs.get("nothing")))
                with pytest.raises(KeyError):
                    logs["nothing"]
                with pytest.raises(TypeError):
                    logs["loss"] = 1.0

        seen = []
        model.fit(X, Y, verbose=0, callbacks=[Look()])
        ((values, *rest),) = seen
        assert rest == [2, True, False, None]
        assert all(type(value) is float for value in values.values())

    def test_they_are_the_means_of_the_epoch_so_far_and_may_be_read_later(self, model):
        class Keep(Callback):
            def on_train_batch_end(self, batch, logs: Any = None):
                kept.append(logs)

        kept = []
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[Keep()]).history
        assert len({logs["loss"] for logs in kept}) == 6
        assert [kept[2]["loss"], kept[5]["loss"]] == history["loss"]
        assert [kept[2]["accuracy"], kept[5]["accuracy"]] == history["accuracy"]

    def test_the_means_of_an_epoch_weigh_rows_alike(self, model):
        model.optimizer.learning_rate = 0.0
        (loss,) = model.fit(X, Y, batch_size=5, verbose=0).history["loss"]
        assert loss == pytest.approx(model.evaluate(X, Y, batch_size=24, verbose=0)[0], abs=1e-6)


def test_what_is_added_to_the_logs_of_an_epoch_reaches_later_callbacks_and_the_history(model):
    class Adds(Callback):
        def on_epoch_end(self, epoch, logs: Any = None):
            logs["extra"] = epoch + 0.5
            logs["loss"] = -1.0

    calls = []
    callbacks = [Recorder(calls, "before "), Adds(), Recorder(calls, "after ")]
    history = model.fit(X, Y, epochs=2, verbose=0, callbacks=callbacks).history
    assert history["extra"] == [0.5, 1.5] and history["loss"] == [-1.0, -1.0]
    assert history["accuracy"][0] >= 0
    names = {name: logs for name, *_, logs in calls}
    assert names["before on_epoch_end"] == names["after on_train_end"] == NAMES
    assert names["after on_epoch_end"] == [*NAMES, "extra"]


def test_an_exception_in_a_callback_leaves_the_model_usable(model):
    class Fails(Callback):
        def on_train_batch_end(self, batch, logs: Any = None):
            if batch == 1:
                raise RuntimeError("from the callback")

    steps = int(model.state.step)
    with pytest.raises(RuntimeError, match="from the callback"):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Fails()])
    assert int(model.state.step) == steps + 2
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0])


def test_history_alone():
    history = History()
    history.on_train_begin()
    history.on_epoch_end(3, {"loss": 1.0})
    history.on_epoch_end(4, {"loss": 0.5, "val_loss": 2.0})
    assert history.epoch == [3, 4]
    assert history.history == {"loss": [1.0, 0.5], "val_loss": [2.0]}


class TestProgress:
    def test_a_line_for_each_epoch_with_steps_and_logs(self, model):
        out = io.StringIO()
        model.fit(X, Y, batch_size=8, epochs=2, validation_data=(X, Y), verbose=0, callbacks=[ProgbarLogger(out)])
        lines = out.getvalue().splitlines()
        assert [line for line in lines if line.startswith("Epoch")] == ["Epoch 1/2", "Epoch 2/2"]
        (first, _) = [line for line in lines if "3/3" in line]
        assert all(f"{name}: " in first for name in NAMES + VAL_NAMES)

    @pytest.mark.parametrize("verbose", ["auto", 1])
    def test_verbose_writes_to_standard_output(self, model, capsys, verbose):
        model.fit(X, Y, verbose=verbose)
        model.evaluate(X, Y, verbose=verbose)
        model.predict(X, verbose=verbose)
        printed = capsys.readouterr().out
        assert printed.count("Epoch 1/1") == 1 and printed.count("1/1 ") == 3

    def test_silence(self, model, capsys):
        model.fit(X, Y, verbose=0)
        model.evaluate(X, Y, verbose=0)
        model.predict(X, verbose=0)
        assert capsys.readouterr().out == ""

    def test_a_terminal_gets_a_bar(self, model):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        out = Terminal()
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[ProgbarLogger(out)])
        assert "loss: " in out.getvalue() and "3/3" in out.getvalue()
