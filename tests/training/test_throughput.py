"""How fast steps go, by a clock that the tests set."""

import types

import pytest

from keras_dist.training import throughput
from keras_dist.training.throughput import GOAL_SECONDS, GROWTH, StepsTuner, StepTimer


class Clock:
    """Stands where the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(throughput, "time", types.SimpleNamespace(perf_counter=lambda: self.now))


class Signal:
    """An array that is ready at a given time."""

    def __init__(self, clock: Clock, at: float) -> None:
        self._clock, self._at = clock, at

    def is_ready(self) -> bool:
        return self._clock.now >= self._at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_two_executions_with_a_gap_between_them(clock):
    watch = StepTimer(StepsTuner())
    watch.begin()
    clock.now = 1.0  # the first batch took a second to make
    first = watch.dispatched(watch.look(), Signal(clock, at=3.0), 20, False)
    clock.now = 2.0
    watch.look()  # still running
    clock.now = 4.0
    began = watch.look()  # done, at some time since 2.0
    second = watch.dispatched(began, Signal(clock, at=6.0), 20, False)
    watch.finished(first, 2)
    clock.now = 6.0
    watch.finished(second, 2)
    watch.end()
    timing = watch.timing([])
    assert timing.steps == 4
    assert timing.wall_seconds == 6.0
    assert timing.overhead == pytest.approx((1.0 + 2.0) / 6.0)
    assert timing.samples_per_second == pytest.approx(40 / 6.0)
    assert (timing.median_step_seconds, timing.p95_step_seconds) == (pytest.approx(1.25), pytest.approx(1.5))
    assert (timing.compilations, timing.compile_seconds) == (0, 0.0)


def test_while_a_step_is_in_flight_the_host_may_take_its_time(clock):
    watch = StepTimer(StepsTuner())
    watch.begin()
    first = watch.dispatched(watch.look(), Signal(clock, at=9.0), 10, False)
    clock.now = 5.0
    second = watch.dispatched(watch.look(), Signal(clock, at=12.0), 10, False)
    clock.now = 9.0
    watch.finished(first, 1)
    clock.now = 12.0
    watch.finished(second, 1)
    watch.end()
    assert watch.timing([]).overhead == 0.0


def test_compiling_is_told_apart(clock):
    watch = StepTimer(StepsTuner())
    watch.begin()
    began = watch.look()
    clock.now = 7.0
    started = watch.dispatched(began, Signal(clock, at=8.0), 10, True)
    clock.now = 8.0
    watch.finished(started, 1)
    watch.end()
    timing = watch.timing([])
    assert (timing.compilations, timing.compile_seconds, timing.wall_seconds) == (1, 7.0, 1.0)
    assert timing.median_step_seconds == 1.0


class TestStepsTuner:
    def test_it_reaches_the_goal_and_stays(self):
        tuner = StepsTuner()
        for _ in range(6):
            tuner.measured(seconds=tuner.steps(left=999) * GOAL_SECONDS / 300, steps=tuner.steps(left=999))
        assert tuner.steps(left=999) == 300

    def test_it_grows_step_by_step_even_if_no_time_has_passed(self):
        tuner = StepsTuner()
        tuner.measured(seconds=0.0, steps=1)
        assert tuner.steps(left=999) == GROWTH
