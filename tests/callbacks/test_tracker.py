"""`Tracker`: the calls that each tracker gets, from modules that note them."""

import sys
import types
from typing import ClassVar

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.callbacks import LambdaCallback, Tracker, TrackerRun, register_tracker
from keras_dist.errors import MissingExtraError, UnknownNameError
from keras_dist.jobs import job
from tests.callbacks.test_tensorboard import scalars, values

X = np.ones((16, 4), "f4")
OPTIONS = {"batch_size": 8, "verbose": 0}
LAYOUT = {"d1/kernel": "(-, model)"}


@pytest.fixture(scope="module")
def model():
    rules = kd.LayoutMap(kd.DeviceMesh("data=4,model=2"))
    rules["d1/kernel"] = (None, "model")
    with kd.ModelParallel(rules, batch_dim_name="data").scope():
        model = kd.Sequential([kd.Input((4,)), layers.Dense(2, use_bias=False, name="d1")], name="net")
    model.compile(kd.optimizers.SGD(0.5), "mse")
    return model


class Noting(types.ModuleType):
    """A module whose functions note their calls; a run that they return is the module itself."""

    id = name = "run 7"

    def __init__(self, name):
        super().__init__(name)
        self.calls = []
        self.info = types.SimpleNamespace(run_id="run 7")

    def __getattr__(self, function):
        if function.startswith("__"):
            raise AttributeError(function)

        def note(*args, **kwargs):
            self.calls.append((function, args, kwargs))
            return self

        return note


def fit(model, tracker, **options):
    return model.fit(X, X[:, :2], callbacks=tracker, **{**OPTIONS, **options}).history


def tracked(monkeypatch, model, name, callbacks=(), **options):
    library = Noting(name)
    monkeypatch.setitem(sys.modules, name, library)
    tracker = Tracker(name, "project", "first", {"note": "mine"}, **options)
    losses = fit(model, [tracker, *callbacks], epochs=2)["loss"]
    return library.calls, losses


CONFIG = {"model": "net", "parameters": 8, "mesh": "{data: 4, model: 2}", "optimizer": "SGD", "epochs": 2, "steps": 2}
CONFIG["note"] = "mine"


def of_epochs(losses):
    return [{"epoch": epoch + 1.0, "loss": loss, "learning_rate": 0.5} for epoch, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("name", "options", "ends"),
    [("wandb", {"mode": "offline"}, {"exit_code": 0}), ("trackio", {"space_id": "me/space"}, {})],
)
def test_wandb_and_trackio(monkeypatch, model, name, options, ends):
    (begin, *logs, end), losses = tracked(monkeypatch, model, name, **options)
    given = {"project": "project", "name": "first", "config": CONFIG | {"layout": LAYOUT}} | options
    assert begin == ("init", (), given)
    assert logs == [("log", (each,), {"step": 2 * n}) for n, each in enumerate(of_epochs(losses), 1)]
    assert end == ("finish", (), ends)


def test_mlflow(monkeypatch, model):
    (experiment, begin, config, text, *logs, end), losses = tracked(monkeypatch, model, "mlflow", tags={"a": "b"})
    assert experiment == ("set_experiment", ("project",), {})
    assert begin == ("start_run", (), {"run_id": None, "run_name": "first", "tags": {"a": "b"}})
    assert (config, text) == (("log_params", (CONFIG,), {}), ("log_text", (str(model.layout_plan), "layout.txt"), {}))
    assert logs == [("log_metrics", (each,), {"step": 2 * n}) for n, each in enumerate(of_epochs(losses), 1)]
    assert end == ("end_run", ("FINISHED",), {})


def test_tensorboard(model, tmp_path):
    pytest.importorskip("tensorboardX")
    losses = fit(model, Tracker("tensorboard", log_dir=tmp_path), epochs=2, validation_data=(X, X[:, :2]))
    found = scalars(tmp_path / "train")
    assert found == pytest.approx(
        {(name, 2 * n): value for n in (1, 2) for name, value in of_epochs(losses["loss"])[n - 1].items()}
    )
    validation = {("loss", 2 * n): loss for n, loss in enumerate(losses["val_loss"], 1)}
    assert scalars(tmp_path / "validation") == pytest.approx(validation)
    texts = values(tmp_path / "train")
    assert b"(-, model)" in texts["layout/text_summary", 0].tensor.string_val[0]
    assert b'"model": "net"' in texts["config/text_summary", 0].tensor.string_val[0]


class Listed(TrackerRun):
    """A tracker of a stranger."""

    runs: ClassVar[list] = []

    def __init__(self, experiment):
        self.experiment, self.logs, self.failed = experiment, [], None
        self.id = experiment.run_id or f"run {len(self.runs)}"
        self.runs.append(self)

    def log(self, values, step):
        self.logs.append((step, values))

    def finish(self, failed):
        self.failed = failed


@pytest.fixture
def runs(monkeypatch):
    register_tracker("listed")(Listed)
    monkeypatch.setattr(Listed, "runs", [])
    return Listed.runs


def test_logs_between_epochs(model, runs):
    fit(model, Tracker("listed", update_freq=2), batch_size=4)
    assert [(step, list(values)) for step, values in runs[0].logs] == [
        (2, ["batch_loss"]),
        (4, ["batch_loss"]),
        (4, ["epoch", "loss", "learning_rate"]),
    ]


def test_steps_of_a_training_that_begins_later(model, runs):
    fit(model, Tracker("listed", update_freq=2), batch_size=4, initial_epoch=2, epochs=3)
    assert [step for step, _ in runs[0].logs] == [10, 12, 12]


def test_the_run_of_a_failed_training_has_failed(model, runs):
    def fail(epoch, logs):
        raise RuntimeError("stopped here")

    with pytest.raises(RuntimeError, match="stopped here"):
        fit(model, [Tracker("listed"), LambdaCallback(on_epoch_end=fail)])
    assert runs[0].failed is True


def test_a_resumed_training_continues_its_run(model, runs, tmp_path):
    backup = kd.callbacks.BackupAndRestore(tmp_path, save_freq=1)

    def stop(batch, logs):
        if batch == 2:
            raise RuntimeError("stopped here")

    with pytest.raises(RuntimeError, match="stopped here"):
        fit(model, [Tracker("listed"), backup, LambdaCallback(on_train_batch_end=stop)], batch_size=4)
    fit(model, [Tracker("listed"), kd.callbacks.BackupAndRestore(tmp_path, save_freq=1)], batch_size=4)
    fit(model, Tracker("listed"))
    assert [run.id for run in runs] == ["run 0", "run 0", "run 2"]
    assert runs[1].logs[-1][0] == 4


def test_other_processes_log_nothing(model, runs, monkeypatch):
    monkeypatch.setattr("keras_dist.callbacks.trackers.is_chief", lambda: False)
    fit(model, Tracker("listed"))
    assert runs == [] and job.is_chief()


def test_mistakes(monkeypatch):
    with pytest.raises(UnknownNameError, match="did you mean 'wandb'"):
        Tracker("wanbd")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match="pip install mlflow"):
        Tracker("mlflow")


@pytest.mark.parametrize("where", ["log", "finish"])
def test_a_tracker_that_raises_is_named_once_and_training_continues(where):
    @kd.callbacks.register_tracker("broken")
    class Broken(kd.callbacks.TrackerRun):
        def __init__(self, experiment):
            pass

        def log(self, values, step):
            if where == "log":
                raise ConnectionError("no network")

        def finish(self, failed):
            if where == "finish":
                raise ConnectionError("no network")

    trained = kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)])
    trained.compile("sgd", "mse")
    tracker = kd.callbacks.Tracker("broken")
    with pytest.warns(UserWarning, match="broken cannot log.*no network") as caught:
        history = trained.fit(np.ones((8, 4)), np.ones((8, 2)), epochs=3, verbose=0, callbacks=[tracker])
    assert len(history.history["loss"]) == 3 and len(caught) == 1
