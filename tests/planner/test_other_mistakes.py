"""Mistakes in the layouts of networks of many kinds: the cause is named first, and the pasted remedy costs no more."""

import re

import pytest

import keras_dist as kd
from keras_dist.planner import remedies
from tests.planner import other_mistakes, unseen_mistakes
from tests.soak import LARGE, few, sampled

NETWORKS = other_mistakes.NETWORKS | unseen_mistakes.NETWORKS
MISTAKES = other_mistakes.MISTAKES | unseen_mistakes.MISTAKES

_COSTS = {}
_OFTEN = ["t5", "gpt2", "mixtral", "mobile_net", "stack", "dlrm"]
_FIRST = [next(name for name in MISTAKES if MISTAKES[name].network == network) for network in _OFTEN]
_FIRST += sampled(unseen_mistakes.MISTAKES, 2)
_OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in MISTAKES if LARGE and name not in _FIRST]


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(remedies, "_MOST_SECONDS", 3600.0)


def costs(found):
    """Bytes moved, FLOPs, and bytes of the state on one device."""
    moved = sum(each.nbytes_per_step for each in found.step.collectives)
    return moved, found.step.flops, found.state.nbytes_per_device


def good(name):
    if name not in _COSTS:
        network = NETWORKS[name]
        found = network.plan(network.distribution(network.good))
        assert all(problem.fix.startswith("no rules") for problem in found.problems)
        _COSTS[name] = costs(found)
    return _COSTS[name]


@pytest.mark.parametrize(
    "name", [*few(_FIRST, "stack: batch over one axis", "fnet: fall dropped", "chars: wide over data"), *_OTHERS]
)
def test_the_cause_is_named_and_the_remedy_restores(name):
    mistake, network = MISTAKES[name], NETWORKS[MISTAKES[name].network]
    found = network.plan(network.distribution(mistake.rules, mistake.axis))
    cause = found.problems[0]
    assert cause.kind == "cause" and re.fullmatch(mistake.cause, cause.path), cause
    names = {"kd": kd, "mesh": found.state.mesh}
    exec(cause.fix, names)
    restored = network.plan(names["distribution"])
    parts = [now / then for now, then in zip(costs(restored), good(mistake.network), strict=True)]
    assert max(parts) <= 1.05, parts
    if min(parts) > 0.9:  # else it is another layout, whose weights may be sharded further
        assert [problem for problem in restored.problems if not problem.fix.startswith("no rules")] == []
    assert len(restored.state.rules) <= len(network.good) + len(mistake.rules) + 5
    if mistake in unseen_mistakes.MISTAKES.values():  # no right rule is changed
        right = {rule: axes for rule, axes in mistake.rules.items() if network.good.get(rule) == axes}
        assert right.items() <= dict(restored.state.rules).items()
