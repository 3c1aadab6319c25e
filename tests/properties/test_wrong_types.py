"""Arguments of wrong types: errors of ours, in the rooms that read files and plan for machines."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import checkpoint, export, planner
from keras_dist.errors import KerasDistError

X, Y = np.zeros((8, 4), "f4"), np.zeros((8, 3), "f4")
NO_PATH = pathlib.Path("/dev/null/x")  # which nobody can make, not even root
ODD = [
    *(None, 0, -1, 1.5, "x", "", "\0", b"x", [], (), {}, [1], [None], {"a": 1}, {1: 2}, {"data": 0}, ("data",)),
    *("data=2", object(), int, float("nan"), 10**30, True, np.zeros(3), jnp.ones(2), NO_PATH, "cpu:8"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where names without folders lead to."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model():
    made = kd.Sequential([kd.Input((4,)), kd.layers.Dense(3, name="d1")])
    made.compile("adam", "mse")
    return made


@pytest.fixture(scope="module")
def report(model):
    return model.plan(X, Y)


def check_errors(what, function, **arguments):
    """Check that no argument of another type ends in an error of Python."""
    for argument in arguments:
        for value in ODD:
            try:
                function(**{**arguments, argument: value})
            except KerasDistError as error:
                assert str(error)
            except Exception as error:
                pytest.fail(f"{what}({argument}={value!r}): {type(error).__name__}: {error}")


def test_checkpoints(model, tmp_path):
    model.save(tmp_path / "m")
    snapshot, stored = model.snapshot(), checkpoint.Stored(tmp_path / "m")
    check_errors("Stored", checkpoint.Stored, folder=tmp_path / "m", is_checked=False)
    check_errors("Stored.of_job", checkpoint.Stored.of_job, folder=tmp_path / "m")
    check_errors("document", stored.document, name="model")
    check_errors("arrays", stored.arrays, wanted={})
    check_errors("arrays", stored.arrays, wanted={"step": None})
    check_errors("arrays_below", stored.arrays_below, prefix="training/")
    check_errors("examine", checkpoint.examine, path=tmp_path / "m")
    check_errors("restore", model.restore, stored=stored, continue_training=False)
    check_errors("snapshot", model.snapshot, with_config=False)
    check_errors("begin", lambda **given: snapshot.begin(**given)(), place=tmp_path / "s", fsync=False)
    fields = {"step": 0, "arrays": {}, "plan": snapshot.plan, "documents": {}}
    check_errors("Snapshot", lambda **given: checkpoint.Snapshot(**given).begin(tmp_path / "s")(), **fields)
    check_errors(
        "documents", lambda **given: checkpoint.Snapshot(**fields | {"documents": given}).begin(tmp_path / "s")(), a=1
    )


def test_managers(model, tmp_path):
    options = {"keep": 5, "keep_every": None, "asynchronous": False, "fsync": False}
    made = lambda **given: checkpoint.CheckpointManager(**given).close()  # noqa: E731
    check_errors("CheckpointManager", made, model=model, directory=tmp_path / "others", **options)
    with checkpoint.CheckpointManager(model, tmp_path / "states") as manager:
        check_errors("save", manager.save, snapshot=None)


def test_exported_programs(model, tmp_path):
    model.export(tmp_path / "e", platforms="cpu")
    check_errors("export.load", export.load, path=tmp_path / "e")
    check_errors("program", export.load(tmp_path / "e"), inputs=X)


def test_plans(model, report, tmp_path):
    planner.assert_plan(report, tmp_path / "plan.json", update=True)
    check_errors("assert_plan", planner.assert_plan, report=report, path=tmp_path / "plan.json", update=None)
    check_errors("to_html", report.to_html, path=tmp_path / "plan.html")
    check_errors("check", planner.check, model_or_factory=model, batch=(X, Y), distribution=None)
    check_errors("target", planner.target, name="v5p:2x2x1")
    check_errors("devices", planner.devices, target="cpu:8")
    given = {"flops": 1e9, "accessed_nbytes": 1e9, "collectives": [], "dtype": "float32", "devices": None}
    check_errors("roofline", planner.roofline, target="cpu:8", mesh={"data": 8}, **given)


def test_what_is_compiled(model):
    lowered = jax.jit(lambda x: x + 1).lower(jnp.zeros(4))
    program = planner.trace_step(model, (X, Y))
    # one of the others is wrong, so that nothing is compiled
    check_errors("compile_for", planner.compile_for, lowered=lowered, target="cpu:3", mesh={"d": 4}, devices=None)
    check_errors("compile_for", planner.compile_for, lowered=lowered, target="cpu:3", timeout_seconds=5)
    check_errors("figures", planner.figures, program=None, target="cpu:8", timeout_seconds=5)
    check_errors("figures", planner.figures, program=program, target="cpu:3", timeout_seconds=5)
