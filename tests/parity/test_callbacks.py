"""Callbacks against Keras: the same logs through both do the same to the model, the logs and the files."""

import io
import pathlib
import tempfile
from contextlib import redirect_stdout
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import keras_dist as kd

NUMBERS = st.integers(0, 16).map(lambda number: number / 4)
"""Far enough apart that float32 orders them as float64 does."""

HISTORIES = st.lists(NUMBERS, min_size=1, max_size=8)


@pytest.fixture(scope="module")
def models(keras):
    """The same compiled model here and in Keras, with a metric that is to rise."""
    found = []
    for library in (kd, keras):
        model = library.Sequential([library.Input((2,)), library.layers.Dense(1)])
        model.compile(library.optimizers.SGD(1.0), loss="mse", metrics=["accuracy"])
        model.train_on_batch(*[library.random.normal(shape) for shape in ((2, 2), (2, 1))])  # Keras builds its metrics
        found.append(model)
    return tuple(found)


def drive(callback: Any, model: Any, name: str, values: list[float]) -> list[Any]:
    """All that can be seen while the hooks are called: rates, logs, whether it stopped, what it printed."""
    model.stop_training = False
    model.optimizer.learning_rate = 1.0
    callback.set_model(model)
    seen: list[Any] = []
    printed = io.StringIO()
    with redirect_stdout(printed):
        callback.on_train_begin()
        for epoch, value in enumerate(values):
            callback.on_epoch_begin(epoch)
            logs = {name: value}
            callback.on_epoch_end(epoch, logs)
            seen.append((sorted(logs.items()), float(model.optimizer.learning_rate), model.stop_training))
            if model.stop_training:
                break
        callback.on_train_end()
    return [seen, printed.getvalue()]


@hypothesis.given(
    values=HISTORIES,
    monitor=st.sampled_from(["loss", "val_loss", "accuracy", "val_accuracy"]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "min_delta": NUMBERS.map(lambda number: number / 4),
            "patience": st.integers(0, 3),
            "verbose": st.integers(0, 1),
            "mode": st.sampled_from(["auto", "min", "max"]),
            "baseline": NUMBERS,
            "restore_best_weights": st.booleans(),
            "start_from_epoch": st.integers(0, 3),
        },
    ),
)
def test_early_stopping(keras, models, values, monitor, options):
    ours, theirs = (library.callbacks.EarlyStopping(monitor, **options) for library in (kd, keras))
    assert drive(ours, models[0], monitor, values) == drive(theirs, models[1], monitor, values)
    for name in ("best", "best_epoch", "wait", "stopped_epoch"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.best_weights is None) == (theirs.best_weights is None)


@hypothesis.given(
    values=HISTORIES,
    monitor=st.sampled_from(["loss", "val_accuracy"]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "factor": st.sampled_from([0.0, 0.125, 0.5]),
            "patience": st.integers(0, 3),
            "verbose": st.integers(0, 1),
            "mode": st.sampled_from(["auto", "min", "max"]),
            "min_delta": NUMBERS.map(lambda number: number / 4),
            "cooldown": st.integers(0, 3),
            "min_lr": st.sampled_from([0.0, 0.0625, 0.25]),
        },
    ),
)
def test_reduce_lr_on_plateau(keras, models, values, monitor, options):
    ours, theirs = (library.callbacks.ReduceLROnPlateau(monitor, **options) for library in (kd, keras))
    assert drive(ours, models[0], monitor, values) == drive(theirs, models[1], monitor, values)
    for name in ("best", "wait", "cooldown_counter"):
        assert getattr(ours, name) == getattr(theirs, name), name


@hypothesis.given(rates=st.lists(NUMBERS, min_size=1, max_size=5), takes_rate=st.booleans(), verbose=st.integers(0, 1))
def test_learning_rate_scheduler(keras, models, rates, takes_rate, verbose):
    def of_both(epoch: int, rate: float) -> float:
        return rate / 2 + rates[epoch]

    schedule: Any = of_both if takes_rate else lambda epoch: rates[epoch]
    ours, theirs = (library.callbacks.LearningRateScheduler(schedule, verbose) for library in (kd, keras))
    assert drive(ours, models[0], "loss", rates) == drive(theirs, models[1], "loss", rates)


@hypothesis.given(
    epochs=st.lists(
        st.dictionaries(st.sampled_from(["loss", "accuracy", "val_loss", "val_f1"]), NUMBERS | st.lists(NUMBERS)),
        min_size=1,
        max_size=3,
    ).filter(lambda epochs: bool(epochs[0])),
    separator=st.sampled_from(",;\t"),
    append=st.booleans(),
)
def test_csv_logger(keras, epochs, separator, append):
    written = []
    for library in (kd, keras):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "log.csv"
            callback = library.callbacks.CSVLogger(path, separator, append)
            for _ in range(2):
                callback.on_train_begin()
                for epoch, logs in enumerate(epochs):
                    callback.on_epoch_end(epoch, dict(logs))
                callback.on_train_end()
            written.append(path.read_bytes())
    assert written[0] == written[1]


def recorder_of(library: Any, calls: list[Any], stop_at: tuple[int, int]) -> Any:
    """A callback that notes every hook with its number and the names in its logs, and ends training in a batch."""

    class Recorder(library.callbacks.Callback):
        epoch = 0

        def __getattribute__(self, name: str) -> Any:
            real = super().__getattribute__(name)
            if not name.startswith("on_") or name == "on_train_exit":  # which Keras has not
                return real

            def hook(*args: Any, logs: Any = None) -> Any:  # Keras gives the logs of batches by name
                numbers = [one for one in args if isinstance(one, int)]
                logs = next(iter(args[len(numbers) :]), logs)
                calls.append((name, numbers, sorted(logs or {})))
                if name == "on_epoch_begin":
                    self.epoch = numbers[0]
                if name == "on_train_batch_end" and (self.epoch, *numbers) == stop_at:
                    self.model.stop_training = True
                return real(*args, logs) if len(args) == len(numbers) else real(*args)

            return hook

    return Recorder()


@pytest.mark.parametrize("stop_at", [(9, 9), (1, 0)])
def test_hooks_their_order_and_their_logs(keras, models, stop_at):
    """All hooks of fit with validation, evaluate and predict, with batch numbers, names of logs and `params`."""
    x, y = np.ones((6, 2), np.float32), np.ones((6, 1), np.float32)
    found = []
    for library, model in zip((kd, keras), models, strict=True):
        calls: list[Any] = []
        callback = recorder_of(library, calls, stop_at)
        options = {"batch_size": 2, "verbose": 0, "callbacks": [callback]}
        model.fit(x, y, epochs=3, initial_epoch=1, validation_data=(x[:4], y[:4]), **options)
        params = dict(callback.params)
        model.evaluate(x, y, **options)
        model.predict(x, **options)
        found.append((calls, params))
    assert found[0] == found[1]
    assert {name for name, *_ in found[0][0]} >= {"on_train_end", "on_test_batch_end", "on_predict_end"}


@pytest.mark.parametrize("loss", [0.5, float("nan"), float("inf"), None])
@pytest.mark.parametrize("raise_error", [False, True])
def test_terminate_on_nan(keras, models, loss, raise_error):
    found = []
    for library, model in zip((kd, keras), models, strict=True):
        callback = library.callbacks.TerminateOnNaN(raise_error)
        model.stop_training = False
        callback.set_model(model)
        printed, error = io.StringIO(), ""
        with redirect_stdout(printed):
            try:
                callback.on_train_begin()
                callback.on_train_batch_begin(3)
                callback.on_train_batch_end(3, {} if loss is None else {"loss": loss})
                callback.on_epoch_end(0, {})
            except RuntimeError as raised:
                error = str(raised)
        found.append((model.stop_training, printed.getvalue().strip(), error))
    (stopped, says, error), (stopped_there, says_there, error_there) = found
    assert stopped == stopped_there
    assert says.startswith(says_there) and error.startswith(error_there)
    assert bool(says) == bool(says_there) and bool(error) == bool(error_there)
