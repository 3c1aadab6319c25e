"""Random networks under random layouts: what plans say is what XLA compiles, or labelled with an interval."""

import dataclasses
import time

import pytest

from keras_dist.planner.peak_memory import PeakMemory
from tests.planner.random_programs import FIRST, Found, compare
from tests.soak import LARGE, ROUNDS, soak_if_large

CPU = [102, 103, 112, 125, 131, 100048, 100061, 300003, 300012, 300014, 300024]
TPU = [9014, 520006, 520010, 9016, 520022, 530004, 520002, 530003]
"""Seeds with figures that were wrong."""


@pytest.mark.full
@soak_if_large
@pytest.mark.parametrize("seed", CPU if LARGE else CPU[::3])
def test_nothing_is_wrong_without_a_label(seed):
    assert list(compare(seed, "cpu:8").problems()) == []


@pytest.mark.full
@soak_if_large
@pytest.mark.parametrize("seed", TPU if LARGE else TPU[::3])
def test_nothing_is_wrong_for_tpus(tpu_compiler, seed):
    assert list(compare(seed, "v5e:2x4").problems()) == []


@pytest.mark.soak
@pytest.mark.multiprocess
@pytest.mark.parametrize("target", ["cpu:8", "v5e:2x4"])
def test_new_programs(request, target):
    """Seeds that no test has seen, but in a single round, as CI runs it; a failing one becomes a case."""
    if target != "cpu:8":
        request.getfixturevalue("tpu_compiler")
    first = FIRST + (int(time.time()) if LARGE else 0)
    wrong = {seed: [*compare(seed, target).problems()] for seed in range(first, first + 2 * ROUNDS)}
    assert not any(wrong.values()), wrong


FINE = Found(
    "",
    given=10**6,
    arguments=10**6,
    moved={("all_reduce", ("data",)): (100, 100)},
    intervals={("all_reduce", ("data",)): (100, 100)},
    total=(100, 100),
    doubted=0,
    bounds=(1, 5),
    peak=3,
    memory=PeakMemory(),
    seconds=(1, 1),
    fits=None,
)
MOVED = {("all_reduce", ("data",)): (100, 60), ("all_gather", ("data",)): (0, 30)}


def test_wrong_figures_are_found():
    assert list(FINE.problems()) == []
    moved = {("all_reduce", ("data",)): (100, 110)}
    wrong = dataclasses.replace(FINE, arguments=9 * 10**5, moved=moved, peak=6, seconds=(2, 1), fits=True)
    assert list(wrong.problems()) == ["state", "collectives", "memory", "fits", "time"]


@pytest.mark.parametrize(
    ("interval", "total", "doubted", "is_labelled"),
    [
        ((50, 100), (50, 100), 50, True),
        ((70, 100), (70, 100), 50, False),  # fewer bytes of this kind than the least
        ((50, 60), (50, 80), 50, False),  # more bytes than the most
        ((50, 100), (50, 100), 10, False),  # more bytes of another kind than are doubted
        ((100, 100), (100, 100), 0, False),
    ],
)
def test_labels_must_contain_the_truth(interval, total, doubted, is_labelled):
    intervals = {("all_reduce", ("data",)): interval}
    found = dataclasses.replace(FINE, moved=MOVED, intervals=intervals, total=total, doubted=doubted)
    assert found.is_labelled == is_labelled
    assert ("collectives" in found.problems()) != is_labelled
