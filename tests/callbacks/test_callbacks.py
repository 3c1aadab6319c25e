"""The protocol of callbacks: which hooks, in which order, with which logs, and at what price."""

import io
import json
import re
from typing import Any

import jax
import numpy as np
import pytest

from keras_dist.callbacks import Callback, CallbackList, History, LambdaCallback, ProgbarLogger, TensorBoard
from keras_dist.errors import ModelError
from tests.networks import blobs

X, Y = blobs(24)


WITHOUT_LOGS = ("on_train_interrupt", "on_train_exit")


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
    logs = ["outputs"] if mode == "predict" else NAMES
    return [
        call
        for batch in range(count)
        for call in ((f"on_{mode}_batch_begin", batch, []), (f"on_{mode}_batch_end", batch, logs))
    ]


def test_the_hooks_of_fit_in_order(model):
    recorder = Recorder()
    model.fit(X, Y, batch_size=16, epochs=2, validation_data=(X[:8], Y[:8]), verbose=0, callbacks=[recorder])
    expected = [("on_train_begin", [])]
    for epoch in range(2):
        expected += [
            ("on_epoch_begin", epoch, []),
            *batches("train", 2),
            ("on_test_begin", []),
            *batches("test", 1),
            ("on_test_end", NAMES),
            ("on_epoch_end", epoch, NAMES + VAL_NAMES),
        ]
    assert recorder.calls == [*expected, ("on_train_end", NAMES + VAL_NAMES), ("on_train_exit", None)]


def test_any_iterable_of_callbacks_or_one_alone(model):
    for wrap in (lambda one: one, lambda one: (one,), lambda one: iter([one])):
        recorder = Recorder()
        model.fit(X, Y, verbose=0, callbacks=wrap(recorder))
        assert [name for name, *_ in recorder.calls][:: len(recorder.calls) - 1] == ["on_train_begin", "on_train_exit"]


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

    def test_they_are_a_mapping_of_floats(self, model):
        class Look(Callback):
            def on_train_batch_end(self, batch, logs: Any = None):
                seen.append((dict(logs), len(logs), "loss" in logs, "nothing" in logs, logs.get("nothing")))
                with pytest.raises(KeyError):
                    logs["nothing"]
                assert {*json.loads(json.dumps(logs.copy()))} == {"loss", "accuracy"}
                assert repr(logs) == repr({**logs}) and logs | {"more": 1} == {**logs, "more": 1}
                logs["loss"] = logs["own"] = 1.0
                assert logs.pop("own") == 1.0 and {**logs}["loss"] == 1.0

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
    assert names["before on_epoch_end"] == NAMES
    assert names["after on_epoch_end"] == names["after on_train_end"] == [*NAMES, "extra"]


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


class TestCallbackList:
    HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))

    @pytest.mark.parametrize("hook", HOOKS)
    def test_each_hook_is_passed_on_in_order(self, hook):
        calls: list[Any] = []
        callbacks = CallbackList([Recorder(calls, "first "), Recorder(calls, "second ")])
        args = [{"loss": 1.0}] if hook.endswith(("train_begin", "train_end")) else [3, {"loss": 1.0}]
        if hook in ("on_test_begin", "on_test_end", "on_predict_begin", "on_predict_end"):
            args = args[1:]
        if hook in WITHOUT_LOGS:
            getattr(callbacks, hook)(None)
            assert calls == [(name + hook, None) for name in ("first ", "second ")]
            return
        getattr(callbacks, hook)(*args)
        assert calls == [(name + hook, *args[:-1], ["loss"]) for name in ("first ", "second ")]

    def test_one_more(self):
        calls: list[Any] = []
        callbacks = CallbackList([Recorder(calls, "first ")])
        callbacks.append(Recorder(calls, "second "))
        callbacks.on_train_begin()
        assert [name for name, _ in calls] == ["first on_train_begin", "second on_train_begin"]

    def test_what_keras_takes(self, model):
        callback, history = Callback(), History()
        callbacks = CallbackList([callback, history], True, True, model, epochs=2)
        assert [type(one) for one in callbacks.callbacks] == [Callback, History, ProgbarLogger]
        assert callbacks.history is history and callback.model is model and callback.params == {"epochs": 2}
        assert CallbackList(callback).callbacks == [callback] and CallbackList().history is None
        assert isinstance(CallbackList(add_history=True).history, History)

    def test_the_history_and_the_bar_that_are_given_are_those_of_fit(self, model, capsys):
        history, out = History(), io.StringIO()
        assert model.fit(X, Y, verbose=1, callbacks=[ProgbarLogger(out), history]) is history
        assert "1/1" in out.getvalue() and capsys.readouterr().out == ""

    def test_the_bar_comes_last_and_shows_what_is_added_to_the_logs(self, model, capsys):
        model.fit(X, Y, verbose=2, callbacks=[LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(extra=0.5))])
        assert "extra: 0.5000" in capsys.readouterr().out

    def test_a_hook_that_takes_too_few_arguments_is_named(self, model):
        class Short(Callback):
            def on_epoch_end(self, e):
                raise AssertionError("must not run")

        with pytest.raises(ModelError, match="on_epoch_end of callback Short cannot be called with epoch, logs"):
            model.fit(X, Y, verbose=0, callbacks=[Short()])

    @pytest.mark.parametrize("callback", [None, Callback, lambda epoch: None])
    def test_what_is_no_callback_is_refused(self, callback):
        with pytest.raises(ModelError, match=r"must hold instances of keras_dist.callbacks.Callback"):
            CallbackList([Callback()]).append(callback)


class TestSeesEveryBatch:
    """Whether the loop may group steps."""

    @pytest.mark.parametrize("mode", ["train", "test", "predict"])
    @pytest.mark.parametrize("when", ["begin", "end"])
    def test_who_has_a_batch_hook_of_its_own_does_in_this_mode(self, mode, when):
        hook = f"on_{mode}_batch_{when}"
        own = type("Own", (Callback,), {hook: lambda self, batch, logs=None: None})()
        for callback in (own, LambdaCallback(**{hook: lambda batch, logs: None}), CallbackList([Callback(), own])):
            assert [m for m in ("train", "test", "predict") if callback.sees_every_batch(m)] == [mode]

    @pytest.mark.parametrize("hook", ["on_batch_begin", "on_batch_end"])
    def test_the_older_names_are_of_training(self, hook):
        own = type("Own", (Callback,), {hook: lambda self, batch, logs=None: None})()
        assert [m for m in ("train", "test", "predict") if own.sees_every_batch(m)] == ["train"]

    @pytest.mark.parametrize("callback", [Callback(), LambdaCallback(on_epoch_end=print), ProgbarLogger(), History()])
    def test_others_do_not(self, callback):
        assert not any(CallbackList([callback]).sees_every_batch(m) for m in ("train", "test", "predict"))

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [({}, False), ({"update_freq": "batch"}, True), ({"update_freq": 5}, True), ({"profile_batch": (2, 3)}, True)],
    )
    def test_tensorboard_does_when_it_counts_batches(self, arguments, expected):
        callback = TensorBoard(**arguments)
        assert callback.sees_every_batch("train") is expected
        assert not callback.sees_every_batch("test")

    def test_callbacks_of_other_libraries_cannot_be_asked(self, model):
        class Foreign:
            set_model = set_params = on_train_batch_end = lambda self, *args: None

        foreign: Any = Foreign()
        assert CallbackList([foreign]).sees_every_batch("train")


class TestListsThatAreGiven:
    def test_what_their_callbacks_log_is_in_the_history(self, model):
        given = CallbackList([LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(own=1.0))], model=model)
        history = model.fit(X, Y, verbose=0, callbacks=given)
        assert history.history["own"] == [1.0] and history is given.history
        assert given.params["epochs"] == 1

    def test_nothing_is_shown_twice(self, model, capsys):
        history = History()
        given = CallbackList([history], add_progbar=True)
        assert model.fit(X, Y, verbose=2, callbacks=given) is history
        assert capsys.readouterr().out.count("accuracy") == 1


def test_a_notebook_sees_a_history_as_a_table():
    history = History()
    history.epoch = [0, 1, 2, 3]
    history.history = {"loss": [2.0, 1.5, 1.25, 1.125], "<val>": [0.123456789, np.float32(3)], "each": [[1, 2]] * 4}
    cells = re.findall(r"<td[^>]*>(.*?)</td>", history._repr_html_())
    assert '<th class="kd-number">&lt;val&gt;</th>' in history._repr_html_()
    assert cells[:8] == ["1", "2", "", "[1, 2]", "2", "1.5", "0.12346", "[1, 2]"]
    assert cells[12:] == ["4", "1.125", "3", "[1, 2]"]
    history.epoch = [0, 1]  # of the second of two trainings with one object
    assert re.findall(r"<tr><td[^>]*>(.*?)</td>", history._repr_html_()) == ["1", "2", "3", "4"]
    assert "History of 0 epochs" in History()._repr_html_()
