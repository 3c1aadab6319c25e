"""Hidden reshards: what a step moves although no rule asks for it is told, with the layer that needs it."""

import dataclasses
import functools

import jax.numpy as jnp
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.planner import Collective, Propagated
from keras_dist.planner.costly_layouts import hidden_reshards
from tests.planner.test_explanation import MEGATRON, STACKED, WIDTH, Scanned, Unrolled, X, strategy
from tests.soak import few

MISTAKES = {
    "unrolled": (Unrolled, {**MEGATRON, r".*down/kernel": (None, "model")}),
    "scanned": (Scanned, {**STACKED, r"blocks/down/kernel": (None, None, "model")}),
}


@functools.cache
def mistaken(name):
    module, rules = MISTAKES[name]
    return kd.plan(module, X, strategy(rules))


def reshards(module, rules):
    return [problem for problem in kd.plan(module, X, strategy(rules)).problems if problem.kind == "reshard"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_rule_that_makes_every_block_gather(name):
    report = mistaken(name)
    found = [problem for problem in report.problems if problem.kind == "reshard"]
    assert "hidden reshard" in str(report)
    block = "blocks" if name == "scanned" else "blocks/1"
    assert f"{block}/up" in {problem.path for problem in found}
    first = next(problem for problem in found if problem.path == f"{block}/up")
    assert "all_gather over 'model' that no rule asks for" in first.summary
    assert f"{block}/norm" in first.given
    if name == "scanned":
        assert "3 turns of a loop" in first.given


@pytest.mark.slow
def test_the_remedy_ends_it():
    before = mistaken("scanned")
    assert (before.problems[0].kind, before.problems[0].path) == ("cause", "blocks/down/kernel")
    assert len({problem.fix for problem in before.problems}) == 1, "one remedy for all"
    names = {"kd": kd, "mesh": before.state.mesh}
    exec(before.problems[0].fix, names)
    after, fits = (kd.plan(Scanned, X, each) for each in (names["distribution"], strategy(STACKED)))
    assert sum(after.step.nbytes_by_axes().values()) <= sum(fits.step.nbytes_by_axes().values())
    assert not after.problems


def test_where_no_rule_for_weights_is_the_reason():
    class Gathers(nnx.Module):
        def __init__(self, rngs):
            self.inner = Reversed()

        def __call__(self, x):
            return self.inner(x)

    class Reversed(nnx.Module):
        def __call__(self, x):
            return jnp.sort(x, axis=0)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.gathers, self.linear = Gathers(rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x):
            return self.linear(self.gathers(x))

    found = reshards(Model, {})
    assert found and all("no rules that were tried cost less" in problem.fix for problem in found)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("module", "rules"), [(Unrolled, MEGATRON), (Scanned, STACKED), (Unrolled, {})])
def test_none_where_layouts_fit(module, rules):
    assert not reshards(module, rules)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(MISTAKES, "unrolled"))
def test_a_rule_for_activations_that_makes_every_block_gather(name):
    module, fits = (Unrolled, MEGATRON) if name == "unrolled" else (Scanned, STACKED)
    rule, block = (r"blocks/\d+/output", "blocks/0") if name == "unrolled" else ("blocks/output", "blocks")
    found = [(problem.path, problem.summary) for problem in reshards(module, {**fits, rule: (None, None, None)})]
    assert (block, f"rule {rule!r} makes {block!r} gather its output over 'data'") in found


def test_what_a_rule_asks_for_is_not_hidden():
    rules = {**MEGATRON, r"blocks/1/up/output": ("data", None, None)}
    report = kd.plan(Unrolled, X, strategy(rules))
    gathers = [
        each for each in report.step.collectives if each.kind == "all_gather" and each.needed_by == "blocks/1/up"
    ]
    assert gathers and all(each.is_asked for each in gathers)
    cause, problem = report.problems
    assert cause.path == "blocks/1/up/output" and "blocks/1/up/output" not in cause.fix
    assert problem.path == "blocks/1/up" and "rule 'blocks/1/up/output' makes" in problem.summary


def test_what_rests_on_an_estimate_says_so():
    moved = Collective("all_gather", ("model",), 1000, 1, "norm", "add", "up", is_asked=False, doubt="reshard")
    (problem,) = hidden_reshards(Propagated((moved,), 0, "", 0, 0), None)
    assert problem.summary.startswith("estimate: hidden reshard: 'up' needs all_gather")
    assert problem.given.startswith("200 B to 3.9 KiB a step")
    (problem,) = hidden_reshards(Propagated((dataclasses.replace(moved, doubt=""),), 0, "", 0, 0), None)
    assert problem.summary.startswith("hidden reshard") and problem.given.startswith("1000 B a step")


@pytest.mark.full
def test_a_remedy_that_rests_on_an_estimate_says_so():
    """XLA may gather less than Shardy does for this rule, and then no other rules cost less."""
    report = mistaken("unrolled")
    least, most = report.step.moved_interval
    assert report.problems[0].kind == "cause" and least < most
    assert report.problems[0].summary.startswith("estimate: other rules cost less")


def test_estimates_do_not_raise_under_strict():
    module, rules = MISTAKES["unrolled"]
    strict = strategy(rules)
    strict.strict = True
    assert any(problem.summary.startswith("estimate: ") for problem in kd.plan(module, X, strict).problems)


def test_blocks_that_are_alike_are_one_problem():
    of_block = [
        Collective(
            "all_gather", ("model",), 1000, 1, f"blocks/{block}/norm", "add", f"blocks/{block}/up", is_asked=False
        )
        for block in range(200)
    ]
    other = Collective("all_gather", ("data",), 1000, 1, "norm", "add", "head", is_asked=False)
    step = Propagated((*of_block, other), 0, "", 0, 0)
    (problem,) = hidden_reshards(step, None)
    assert problem.path == "blocks/0/up" and "'blocks/0/up' and 199 like it needs all_gather" in problem.summary
    assert "195.3 KiB a step" in problem.given and "and 197 more" in problem.given
