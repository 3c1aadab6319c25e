"""Hidden reshards: what a step moves although no rule asks for it is told, with the layer that needs it."""

import pytest

import keras_dist as kd
from tests.planner.test_explanation import MEGATRON, STACKED, Scanned, Unrolled, X, strategy

MISTAKES = {
    "unrolled": (Unrolled, {**MEGATRON, r".*down/kernel": (None, "model")}),
    "scanned": (Scanned, {**STACKED, r"blocks/down/kernel": (None, None, "model")}),
}


def reshards(module, rules):
    return [problem for problem in kd.plan(module, X, strategy(rules)).problems if problem.kind == "reshard"]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_rule_that_makes_every_block_gather(name):
    found = reshards(*MISTAKES[name])
    block = "blocks" if name == "scanned" else "blocks/1"
    assert f"{block}/up" in {problem.path for problem in found}
    first = next(problem for problem in found if problem.path == f"{block}/up")
    assert "all_gather over 'model' that no rule asks for" in first.summary
    assert f"{block}/norm" in first.given
    if name == "scanned":
        assert "3 turns of a loop" in first.given


@pytest.mark.parametrize(("module", "rules"), [(Unrolled, MEGATRON), (Scanned, STACKED), (Unrolled, {})])
def test_none_where_layouts_fit(module, rules):
    assert not [problem for problem in reshards(module, rules) if problem.path.startswith("blocks")]


def test_what_a_rule_asks_for_is_not_hidden():
    rules = {**MEGATRON, r"blocks/1/up/output": ("data", None, None)}
    report = kd.plan(Unrolled, X, strategy(rules))
    gathers = [
        each for each in report.step.collectives if each.kind == "all_gather" and each.needed_by == "blocks/1/up"
    ]
    assert gathers and all(each.is_asked for each in gathers)
    assert "blocks/1/up" not in {problem.path for problem in report.problems}


def test_reports_tell_them():
    report = kd.plan(*(MISTAKES["unrolled"][0], X, strategy(MISTAKES["unrolled"][1])))
    assert "hidden reshard" in str(report)
    assert [each["kind"] for each in report.to_dict()["problems"]].count("reshard") == len(report.problems)
