"""`report.compare`: what changes, with signs and ratios."""

import json

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.planner import Comparison, PlanReport
from tests import layouts


def report_on(distribution, name="d2"):
    with distribution.scope():
        model = kd.Sequential([kd.Input((16,)), layers.Dense(32, name="d1"), layers.Dense(8, name=name)])
    model.compile("adam", "mse")
    return model.plan(np.zeros((8, 16)), np.zeros((8, 8)))


@pytest.fixture(scope="module")
def replicated() -> PlanReport:
    return report_on(kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))))


@pytest.fixture(scope="module")
def paired() -> PlanReport:
    return report_on(layouts.on("data=2,model=4"))


@pytest.fixture(scope="module")
def changes(replicated, paired) -> Comparison:
    return replicated.compare(paired)


def test_layouts_that_differ(changes):
    found = {change.path: change for change in changes.layouts}
    slots = {path for path in found if path.startswith("optimizer/")}
    assert set(found) - slots == {"d1/kernel", "d2/kernel"} and len(slots) == 4
    kernel = found["d1/kernel"]
    assert (kernel.before.axes, kernel.after.axes) == ((None, None), (None, "model"))
    assert (kernel.nbytes.difference, kernel.nbytes.ratio) == (512 - 2048, 0.25)


def test_figures_are_those_of_the_reports(changes, replicated, paired):
    assert {role: (change.before, change.after) for role, change in changes.nbytes_by_role.items()} == {
        role: (nbytes, paired.nbytes_by_role[role]) for role, nbytes in replicated.nbytes_by_role.items()
    }
    before, after = replicated.step.nbytes_by_axes(), paired.step.nbytes_by_axes()
    assert set(changes.collectives) == {*before, *after}
    for key, change in changes.collectives.items():
        assert (change.before, change.after) == (before.get(key, 0), after.get(key, 0))
    only_after = changes.collectives["all_reduce", ("model",)]
    assert only_after.before == 0 < only_after.difference and only_after.ratio is None
    assert changes.flops.ratio == pytest.approx(paired.step.flops / replicated.step.flops) and changes.flops.ratio < 1
    assert changes.activation_nbytes.after == paired.step.activation_nbytes


def test_printed(changes):
    lines = [" ".join(line.replace("│", " ").split()) for line in str(changes).splitlines()]
    assert lines[:2] == ["On mesh {data: 2, model: 4}", "6 layouts (exact)"]
    assert "d1/kernel replicated (-, model) 2.0 KiB 512 B -1.5 KiB x 0.25" in lines
    assert lines.index("d1/kernel replicated (-, model) 2.0 KiB 512 B -1.5 KiB x 0.25") < next(
        index for index, line in enumerate(lines) if line.startswith("optimizer/")
    )
    moved = changes.collectives["all_reduce", ("model",)].after
    assert f"all_reduce model 0 B {moved} B +{moved} B -" in lines
    assert any(line.startswith("FLOPs of a step propagated") for line in lines)
    assert repr(changes) == str(changes)
    assert "<td>d1/kernel</td>" in changes._repr_html_() and "nothing changes" not in changes._repr_html_()


def test_nothing_changes(paired):
    same = paired.compare(paired)
    assert same.is_empty and not same.layouts
    assert "nothing changes" in str(same) and "layouts (exact)" not in str(same)


def test_it_is_json(changes):
    found = json.loads(json.dumps(changes.to_dict()))
    kernel = next(each for each in found["exact"]["layouts"] if each["path"] == "d1/kernel")
    assert kernel["after"] == {"shape": [16, 32], "axes": [None, "model"], "rule": "d1/kernel"}
    assert kernel["nbytes_per_device"] == {"before": 2048, "after": 512, "difference": -1536, "ratio": 0.25}
    assert found["mesh"] == {"before": "{data: 2, model: 4}", "after": "{data: 2, model: 4}"}
    assert {(each["kind"], *each["axes"]) for each in found["propagated"]["collectives"]} == {
        (kind, *axes) for kind, axes in changes.collectives
    }


def test_other_meshes_and_other_models(paired):
    other = report_on(layouts.on("fully data=8"), name="renamed")
    found = paired.compare(other)
    assert str(found).startswith("From mesh {data: 2, model: 4} to mesh {data: 8}")
    paths = {change.path: change for change in found.layouts}
    assert paths["d2/kernel"].after is None and paths["d2/kernel"].nbytes.after == 0
    assert paths["renamed/kernel"].before is None and "not there" in str(found)
    assert found.to_dict()["exact"]["layouts"][-1]["before"] is None


@pytest.mark.parametrize("wrong", [None, {}, "report"])
def test_a_report_is_needed(paired, wrong):
    with pytest.raises(ModelError, match="`other` must be a PlanReport"):
        paired.compare(wrong)
