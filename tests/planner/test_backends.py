"""Collectives of small programs are propagated as XLA compiled them, for each backend."""

import pytest

from keras_dist.planner import compile_for, propagate
from tests.planner.backend_experiments import EXPERIMENTS, by_kind, lowered

LABELLED = {"gradient of a recurrence", "gradients of a sharded stack"}
"""Shardy exchanges otherwise than XLA, as the estimates say."""
RECORDED = [(name, target) for name, one in EXPERIMENTS.items() for target in one.recorded]


@pytest.mark.parametrize(("name", "target"), RECORDED)
def test_as_recorded_or_labelled(name, target):
    found = propagate(lowered(EXPERIMENTS[name], "cpu" if target == "cpu:8" else "tpu"))
    if name in LABELLED:
        assert found.estimates
    else:
        assert by_kind(found) == EXPERIMENTS[name].recorded[target]


@pytest.mark.full
@pytest.mark.parametrize(("name", "target"), RECORDED)
def test_records_are_what_xla_does(request, name, target):
    platform = "cpu"
    if target != "cpu:8":
        platform = "tpu"
        request.getfixturevalue("tpu_compiler")
    assert by_kind(compile_for(lowered(EXPERIMENTS[name], platform), target)) == EXPERIMENTS[name].recorded[target]
