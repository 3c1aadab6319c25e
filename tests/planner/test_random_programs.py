"""Random networks under random layouts: what plans say is what XLA compiles, or labelled."""

import pytest

from keras_dist.planner.peak_memory import PeakMemory
from tests.planner.random_programs import Found, compare


@pytest.mark.full
@pytest.mark.parametrize("seed", [102, 103, 112, 131])
def test_nothing_is_wrong_without_a_label(seed):
    assert list(compare(seed, "cpu:8").problems()) == []


def test_wrong_figures_are_found():
    moved = {("all_reduce", ("data",)): (100, 110)}
    wrong = Found(
        "",
        given=10**6,
        arguments=9 * 10**5,
        moved=moved,
        estimates=0,
        bounds=(1, 2),
        peak=3,
        memory=PeakMemory(),
        seconds=(2, 1),
    )
    assert list(wrong.problems()) == ["state", "collectives", "memory", "time"]
