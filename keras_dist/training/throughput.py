"""How fast steps go, and how many of them to run at once: few enough to be interrupted, enough to be cheap."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping

import numpy as np

from keras_dist._support.types import Device, PyTree

GOAL_SECONDS = 0.1
"""An execution should take about as long: hundreds of times its dispatch, and not long to wait for after Ctrl-C."""

GROWTH = 8
"""From one measurement to the next executions grow by no more than this factor: the first measurements are rough."""


class FixedSteps:
    """A fixed number of steps per execution, as the user says; the rest of an epoch one by one.

    Example:
        >>> tuner = FixedSteps(4)
        >>> tuner.steps(left=9), tuner.steps(left=3)
        (4, 1)
    """

    is_fixed = True

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def steps(self, left: int) -> int:
        """Return the number of steps of the next execution, with `left` steps left."""
        return self._steps if self._steps <= left else 1

    def measured(self, seconds: float, steps: int) -> None:
        """Learn nothing from the duration of an execution."""


class StepsTuner:
    """Learns from finished executions how many steps the next ones should take.

    Example:
        >>> tuner = StepsTuner()
        >>> tuner.steps(left=99)
        1
        >>> tuner.measured(seconds=0.01, steps=1)
        >>> tuner.steps(left=99)
        8
        >>> tuner.measured(seconds=0.08, steps=8)
        >>> tuner.steps(left=99), tuner.steps(left=3)
        (10, 3)
    """

    is_fixed = False

    def __init__(self) -> None:
        self._steps = 1

    def steps(self, left: int) -> int:
        """Return the number of steps of the next execution, with `left` steps left."""
        return min(self._steps, left)

    def measured(self, seconds: float, steps: int) -> None:
        """Learn from the duration of an execution."""
        possible = GOAL_SECONDS * steps / seconds if seconds > 0 else float("inf")
        self._steps = max(1, round(min(possible, GROWTH * self._steps)))


@dataclasses.dataclass(frozen=True)
class Timing:
    """How fast a training went. Validation and callbacks of epochs are not in it.

    Attributes:
        steps: how many steps ran.
        compilations: how many programs were compiled.
        compile_seconds: what tracing and compiling them took.
        wall_seconds: from the first dispatch of each epoch until its last step was done, without compiling.
        median_step_seconds: of a step; those of one execution count alike. NaN without steps.
        p95_step_seconds: 95 of 100 steps took no longer.
        samples_per_second: rows by `wall_seconds`.
        overhead: the share of `wall_seconds` in which no step was in flight, at most: the end of a step is noticed
            only when the loop looks.
        peak_bytes: the most memory that was in use, by device, where the backend tells (CPUs do not).
    """

    steps: int
    compilations: int
    compile_seconds: float
    wall_seconds: float
    median_step_seconds: float
    p95_step_seconds: float
    samples_per_second: float
    overhead: float
    peak_bytes: Mapping[str, int]


class EpochClock:
    """Measures the wall time of an epoch without compilation, from when it is made until `stop`."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._compiling = 0.0

    def leave_out(self, seconds: float) -> None:
        """Do not count the duration of a compilation."""
        self._compiling += seconds

    def stop(self) -> None:
        """Measure no further."""
        self._ended = time.perf_counter()

    def seconds(self) -> float:
        """The wall time so far [s], more than 0."""
        until = time.perf_counter() if self._ended is None else self._ended
        return max(until - self._began - self._compiling, 1e-9)


class StepTimer:
    """Measures the loop: told of every dispatch, of every wait, and of the end."""

    def __init__(self, tuner: StepsTuner | FixedSteps | None = None) -> None:
        self._tuner = tuner
        self._step_seconds: list[tuple[float, int]] = []
        self._rows = self._compilations = 0
        self._wall = self._idle = self._compiling = 0.0
        self._began = self._busy_until = self._finished = 0.0
        self._newest: PyTree = None
        self.clock = EpochClock()

    def begin(self) -> None:
        """The first batch is about to be made."""
        self._began = self._busy_until = self._finished = time.perf_counter()
        self._newest = None
        self.clock = EpochClock()

    def look(self) -> float:
        """Note whether a step is in flight now, and return when that was."""
        now = time.perf_counter()
        if self._newest is not None and not self._newest.is_ready():
            self._busy_until = now
        return now

    def dispatched(self, began: float, signal: PyTree, rows: int, compiled: int) -> float:
        """Note a dispatch that began at `began`; return when its steps may have started, for `finished`."""
        self._idle += began - self._busy_until
        self._busy_until = time.perf_counter()
        self._rows += rows
        self._newest = signal
        if not compiled:
            return began
        self._compilations += compiled
        self._compiling += self._busy_until - began
        self.clock.leave_out(self._busy_until - began)
        return self._busy_until

    def finished(self, started: float, steps: int) -> None:
        """The oldest execution in flight was waited for."""
        now = time.perf_counter()
        seconds = now - max(started, self._finished)
        self._finished = self._busy_until = now
        self._step_seconds.append((seconds / steps, steps))
        if self._tuner is not None:
            self._tuner.measured(seconds, steps)

    def end(self) -> None:
        """All executions were waited for."""
        self._wall += time.perf_counter() - self._began
        self.clock.stop()

    def timing(self, devices: Iterable[Device]) -> Timing:
        """What was measured since the timer was made."""
        times, counts = np.array(self._step_seconds or [(np.nan, 1)]).T
        median, p95 = np.quantile(np.repeat(times, counts.astype(int)), (0.5, 0.95))
        wall = self._wall - self._compiling
        return Timing(
            steps=sum(steps for _, steps in self._step_seconds),
            compilations=self._compilations,
            compile_seconds=self._compiling,
            wall_seconds=wall,
            median_step_seconds=float(median),
            p95_step_seconds=float(p95),
            samples_per_second=self._rows / wall if wall > 0 else 0.0,
            overhead=self._idle / wall if wall > 0 else 0.0,
            peak_bytes={
                str(device): stats["peak_bytes_in_use"]
                for device in devices
                if "peak_bytes_in_use" in (stats := device.memory_stats() or {})
            },
        )
