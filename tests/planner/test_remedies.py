"""Remedies: code with all rules, found by trying, that restores the good layout when it is pasted."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import LayoutError
from keras_dist.planner import remedies
from keras_dist.planner.edited_rules import edited_rules
from keras_dist.planner.propagation import propagate
from tests.planner.mistakes import (
    BLOCK,
    CAUSES,
    CONFIG,
    DOWN,
    GATE_UP,
    GOOD,
    MISTAKES,
    distribution,
    mistaken,
    program,
    report,
)

QUICK = ("down transposed", "head whole", "outputs whole")


def figures(found):
    """Bytes moved, FLOPs, and bytes of the state on one device."""
    moved = sum(each.nbytes_per_step for each in found.step.collectives)
    return moved, found.step.flops, found.state.nbytes_per_device


def pasted(found):
    names = {"kd": kd, "mesh": found.state.mesh}
    exec(found.problems[0].fix, names)
    return names["distribution"]


@pytest.fixture(scope="module")
def good():
    return report(distribution(GOOD))


def test_a_good_layout_has_no_problems(good):
    assert good.problems == ()


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MISTAKES]
)
def test_the_pasted_remedy_restores_the_good_layout(name, good):
    found = report(mistaken(name))
    cause = found.problems[0]
    assert cause.kind == "cause"
    assert name not in CAUSES or CAUSES[name] & set(cause.path.split("/")), cause.path
    restored = report(pasted(found))
    assert figures(restored) == pytest.approx(figures(good), rel=0.05)
    assert restored.problems == ()
    assert len(restored.state.rules) <= len(GOOD) + 1


@pytest.mark.slow
def test_stacked_blocks():
    layout_map = kd.pretrained.rules(CONFIG, kd.DeviceMesh("data=2,model=4"), scan=True)
    fits = report(kd.ModelParallel(layout_map, "data"), scan=True)
    del layout_map["layers/feed_forward/down/kernel"]
    found = report(kd.ModelParallel(layout_map, "data"), scan=True)
    assert found.problems[0].path == "layers/feed_forward/down/kernel"
    assert figures(report(pasted(found), scan=True)) == pytest.approx(figures(fits), rel=0.05)


def test_a_search_is_bounded(monkeypatch):
    traced = program(mistaken("down whole"))
    step = propagate(traced.lowered)
    monkeypatch.setattr(remedies, "MOST_TRIED", 0)
    assert remedies.find_remedy(traced, step) is None
    monkeypatch.setattr(remedies, "MOST_TRIED", 64)
    monkeypatch.setattr(remedies, "_MOST_SECONDS", -1.0)
    assert remedies.find_remedy(traced, step) is None


def test_repeated_work_is_a_problem_that_strict_raises(good):
    with pytest.raises(LayoutError, match="the cause is the layout of 'head/kernel', and 1 more problem") as error:
        report(mistaken("head whole", strict=True))
    _, repeated = error.value.problems
    assert (repeated.kind, repeated.path) == ("repeated", "head")
    assert "the 4 devices along 'model' compute the same in 'head'" in repeated.summary
    # a head of 64 x 512 against four layers of 36,864 parameters each, and scores of 32 x 32
    assert repeated.given.startswith("1.33 times the FLOPs")
    assert f"{good.step.flops:,} FLOPs" in repeated.expected


def test_text_and_html_show_the_code(tmp_path):
    found = report(mistaken("down whole"))
    fix = found.problems[0].fix
    assert fix in str(found) and str(found).count(fix) == 1
    assert "# before: " in fix and "# after: " in fix
    found.to_html(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert "rules = kd.LayoutMap(mesh)\n" in text and "white-space: pre-line" in text


def test_weights_left_whole_beside_split_partners_are_told():
    found = report(mistaken("keys and values whole"))
    whole = [problem for problem in found.problems if problem.kind == "whole"]
    assert {problem.path.split("/")[-2] for problem in whole} == {"key", "value"}
    assert all("and 3 like it is whole along 'model'" in problem.summary for problem in whole)


@pytest.mark.parametrize(
    ("rules", "changes", "expected"),
    [
        ({DOWN: (None, "model")}, {DOWN: ("model", None)}, {DOWN: ("model", None)}),
        ({DOWN.replace(r"\d+", "[01]"): ("model", None)}, {DOWN: ("model", None)}, {DOWN: ("model", None)}),
        ({"layers/2/feed_forward/down/kernel": ("model", None)}, {DOWN: ("model", None)}, {DOWN: ("model", None)}),
        ({DOWN: ("model", None)}, {DOWN: (None, None)}, {}),
        ({"typo": (None,)}, {}, {}),
        (
            {BLOCK + "feed_forward/.*kernel": (None, "model")},
            {DOWN: ("model", None)},
            {DOWN: ("model", None)} | {GATE_UP.replace("(gate|up)", name): (None, "model") for name in ("gate", "up")},
        ),
        (
            {GATE_UP: (None, "model"), ".*/output": (None,)},
            {DOWN: ("model", None)},
            {GATE_UP: (None, "model"), ".*/output": (None,), DOWN: ("model", None)},
        ),
    ],
    ids=["transposed", "half", "one", "dropped", "dead", "too much", "kept"],
)
@pytest.mark.filterwarnings("ignore:.*no effect")
def test_edited_rules(rules, changes, expected):
    """Rules are kept, changed, extended to all blocks or replaced, whichever gives the fewest."""
    shapes = {"gate": (64, 256), "up": (64, 256), "down": (256, 64)}
    tree = {
        "layers": [
            {"feed_forward": {name: {"kernel": np.zeros(shape, "float32")} for name, shape in shapes.items()}}
            for _ in range(4)
        ]
    }
    plan = distribution(rules).plan(tree)
    after = {f"layers/{i}/feed_forward/down/kernel": axes for axes in changes.values() for i in range(4)}
    found = edited_rules(distribution(rules).layout_map, plan.rows, after)
    assert {rule: layout.axes for rule, layout in found.snapshot()} == expected
