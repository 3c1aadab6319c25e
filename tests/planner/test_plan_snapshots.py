"""`assert_plan`: a rename or a rule that changes a placement fails, and says what changed."""

import json
import os

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import PlanError, PlanFileError, WriteError
from keras_dist.planner import assert_plan
from keras_dist.planner.plan_snapshots import UPDATE_VARIABLE
from tests import layouts


def report_on(distribution, name="d2"):
    with distribution.scope():
        model = kd.Sequential([kd.Input((16,)), layers.Dense(32, name="d1"), layers.Dense(8, name=name)])
    model.compile("adam", "mse")
    return model.plan(np.zeros((8, 16)), np.zeros((8, 8)))


def on_the_mesh(rules, **options):
    return kd.ModelParallel(_map(rules), batch_dim_name="data", **options)


def _map(rules, **mesh):
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4", **mesh))
    layout_map.update(rules)
    return layout_map


@pytest.fixture(scope="module")
def report():
    return report_on(layouts.on("data=2,model=4"))


@pytest.fixture(scope="module")
def changed():
    return report_on(on_the_mesh({**layouts.RULES, "d1/kernel": ("model", None)}))


@pytest.fixture
def kept(report, tmp_path):
    path = tmp_path / "plan.json"
    assert_plan(report, path, update=True)
    return path


def test_the_same_plan_passes(report, kept):
    before = kept.read_bytes()
    assert_plan(report, kept)
    assert_plan(report_on(layouts.on("data=2,model=4")), str(kept))
    assert kept.read_bytes() == before


def test_a_rename_that_loses_its_rule_fails(kept):
    with pytest.warns(kd.errors.LayoutWarning):
        renamed = report_on(on_the_mesh(layouts.RULES), name="out")
    with pytest.raises(PlanError) as caught:
        assert_plan(renamed, kept)
    assert isinstance(caught.value, AssertionError)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert "d2/kernel: is missing; was (model, -), d2/kernel" in lines
    assert "out/kernel: is new, replicated, no rule" in lines
    assert not any(line.startswith("d1/") for line in lines)
    assert f"{UPDATE_VARIABLE}=1" in caught.value.fix


def test_another_layout_fails(changed, kept):
    with pytest.raises(PlanError) as caught:
        assert_plan(changed, kept)
    lines = str(caught.value).splitlines()
    assert caught.value.given == "3 differences"
    assert "    d1/kernel: was (-, model), d1/kernel; is (model, -), d1/kernel" in lines
    assert len([line for line in lines if line.startswith("    ")]) == 3, "with two slots"


@pytest.mark.slow
def test_another_rule_for_the_same_layout_passes(kept):
    assert_plan(report_on(on_the_mesh({"d[1]/kernel": (None, "model"), "d2/kernel": ("model", None)})), kept)


def test_another_mesh_and_new_arrays_fail(report, kept):
    other = report_on(layouts.on("data=4,model=2"))
    with pytest.raises(PlanError, match=r"mesh: was data=2, model=4, is data=4, model=2"):
        assert_plan(other, kept)
    document = json.loads(kept.read_text())
    document["arrays"]["d1/bias"]["dtype"] = "int8"
    kept.write_text(json.dumps(document))
    with pytest.raises(PlanError) as caught:
        assert_plan(report, kept)
    assert caught.value.given == "1 difference"
    del document["arrays"]["d1/bias"]
    document["arrays"]["d0/kernel"] = document["arrays"]["d1/kernel"] | {"shape": [5, 5]}
    kept.write_text(json.dumps(document))
    with pytest.raises(PlanError) as caught:
        assert_plan(report, kept)
    assert "    d1/bias: is new, replicated, no rule" in str(caught.value).splitlines()
    assert "    d0/kernel: is missing; was (-, model), d1/kernel" in str(caught.value).splitlines()


def test_the_file_says_nothing_of_the_machine(report, kept):
    text = kept.read_text()
    assert "cpu:" not in text and os.sep + "tmp" not in text and jax.__version__ not in text
    rows = text.split('"arrays"')[1].splitlines()[1:-2]
    assert rows == sorted(rows) and len(rows) == len(report.state.rows) + len(report.batch.rows)
    devices = [f"cpu:{index}" for index in reversed(range(8))]
    reversed_map = _map(layouts.RULES, devices=devices)
    assert_plan(report_on(kd.ModelParallel(reversed_map, batch_dim_name="data")), kept)


def test_a_missing_file_is_written_only_when_told(report, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    for update in (None, False):
        with pytest.raises(PlanError, match="does not exist"):
            assert_plan(report, path, update=update)
        assert not path.exists()
    monkeypatch.setenv(UPDATE_VARIABLE, "0")
    with pytest.raises(PlanError):
        assert_plan(report, path)
    monkeypatch.setenv(UPDATE_VARIABLE, "1")
    with pytest.raises(PlanError):
        assert_plan(report, path, update=False)
    assert not path.exists()
    assert_plan(report, path)
    monkeypatch.delenv(UPDATE_VARIABLE)
    assert_plan(report, path)


def test_an_update_replaces_the_file(changed, kept):
    assert_plan(changed, kept, update=True)
    assert_plan(changed, kept)


def _damages(document):
    array = document["arrays"]["d1/kernel"]
    yield "Invalid JSON", lambda text: text[: len(text) // 2]
    yield "Invalid JSON", lambda text: ""
    yield "Invalid JSON", lambda text: "[" * 100_000
    yield "Invalid JSON", lambda text: b"\xff\xfe" + text.encode()
    yield "format", lambda text: text.replace("keras_dist plan 1", "keras_dist plan 9")
    yield "arrays/d1/kernel/shape", lambda text: text.replace('"shape": [16, 32]', '"shape": "16"')
    yield (
        "arrays/d1/kernel/pickle",
        lambda text: json.dumps(document | {"arrays": {"d1/kernel": array | {"pickle": "x"}}}),
    )
    yield "mesh", lambda text: json.dumps({name: value for name, value in document.items() if name != "mesh"})
    yield "", lambda text: "null"


@pytest.mark.parametrize("index", range(9))
def test_damaged_files_are_told(report, kept, index):
    text = kept.read_text()
    words, damage = list(_damages(json.loads(text)))[index]
    damaged = damage(text)
    kept.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    with pytest.raises(PlanFileError, match="is not a plan, or is damaged") as caught:
        assert_plan(report, kept)
    assert words in caught.value.given and len(str(caught.value)) < 1500


def test_other_files_are_told(report, tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path, pipe):
        with pytest.raises(PlanFileError) as caught:
            assert_plan(report, place)
        assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.setattr("keras_dist.planner.plan_snapshots._MOST_BYTES", 100)
    large = tmp_path / "large.json"
    assert_plan(report, large, update=True)
    with pytest.raises(PlanFileError) as caught:
        assert_plan(report, large)
    assert caught.value.given == "more than 100 bytes"


def test_a_place_that_cannot_be_written(report, tmp_path):
    for place in (tmp_path, tmp_path / "nowhere" / "plan.json"):
        with pytest.raises(WriteError, match="was not written") as caught:
            assert_plan(report, place, update=True)
        assert caught.value.filename == str(place) and "choose another path" in caught.value.fix
