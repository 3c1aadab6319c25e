"""Timing of steps, and the number of steps of an execution: cheap to dispatch, and soon done after Ctrl-C.

Devices count tokens and rows, and the host divides by the wall time of the epoch without compilation. A resumed epoch
counts anew: the seconds of another process are not known.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping

import numpy as np

from keras_dist._support.types import Device, PyTree

GOAL_SECONDS = 0.1  # duration of an execution: hundreds of times its dispatch, and a short wait after Ctrl-C
GROWTH = 8  # largest growth of executions between two measurements: the first ones are rough


class StepsTuner:
    """The number of steps per execution: `fixed`, or learned from the duration of finished executions."""

    def __init__(self, fixed: int | None = None) -> None:
        self.is_fixed = fixed is not None
        self._steps = fixed or 1

    def steps(self, left: int) -> int:
        """Return the steps of the next execution, at most `left`; those that do not fill a fixed number run alone."""
        return 1 if self.is_fixed and self._steps > left else min(self._steps, left)

    def measured(self, seconds: float, steps: int) -> None:
        """Learn from the duration of an execution."""
        if not self.is_fixed:
            possible = GOAL_SECONDS * steps / seconds if seconds > 0 else float("inf")
            self._steps = max(1, round(min(possible, GROWTH * self._steps)))


@dataclasses.dataclass(frozen=True)
class Timing:
    """Timing of a training, without validation and callbacks of epochs.

    Attributes:
        steps: number of steps.
        rows: number of rows.
        compilations: number of compiled programs.
        compile_seconds: duration of tracing and compilation.
        wall_seconds: time from the first dispatch of each epoch until its last step was done, without compilation.
        median_step_seconds: median duration of a step; steps of one execution have equal durations. NaN without steps.
        p95_step_seconds: 95th percentile of the durations of steps.
        samples_per_second: rows divided by `wall_seconds`.
        overhead: upper bound of the share of `wall_seconds` in which no step was in flight.
        peak_bytes: largest memory in use by device, if the backend reports it (CPUs do not).
    """

    steps: int
    rows: int
    compilations: int
    compile_seconds: float
    wall_seconds: float
    median_step_seconds: float
    p95_step_seconds: float
    samples_per_second: float
    overhead: float
    peak_bytes: Mapping[str, int]


class EpochClock:
    """The wall time of an epoch without compilation, from its construction until `stop`."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._compiling = 0.0

    def leave_out(self, seconds: float) -> None:
        """Subtract the duration of a compilation."""
        self._compiling += seconds

    def stop(self) -> None:
        """Stop the clock."""
        self._ended = time.perf_counter()

    def seconds(self) -> float:
        """Return the wall time so far [s], more than 0."""
        until = time.perf_counter() if self._ended is None else self._ended
        return max(until - self._began - self._compiling, 1e-9)


class StepTimer:
    """Measures the training loop by its dispatches and waits."""

    def __init__(self, tuner: StepsTuner | None = None) -> None:
        self._tuner = tuner
        self._step_seconds: list[tuple[float, int]] = []
        self._rows = self._compilations = 0
        self._wall = self._idle = self._compiling = 0.0
        self._began = self._busy_until = self._finished = 0.0
        self._newest: PyTree = None
        self.clock = EpochClock()

    def begin(self) -> None:
        """Record the start of an epoch."""
        self._began = self._busy_until = self._finished = time.perf_counter()
        self._newest = None
        self.clock = EpochClock()

    def look(self) -> float:
        """Record whether a step is in flight now, and return the time."""
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
        """Note that the oldest execution in flight is done."""
        now = time.perf_counter()
        seconds = now - max(started, self._finished)
        self._finished = self._busy_until = now
        self._step_seconds.append((seconds / steps, steps))
        if self._tuner is not None:
            self._tuner.measured(seconds, steps)

    def end(self) -> None:
        """Record the end of an epoch."""
        self._wall += time.perf_counter() - self._began
        self.clock.stop()

    def timing(self, devices: Iterable[Device]) -> Timing:
        """Return the measurements since construction."""
        times, counts = np.array(self._step_seconds or [(np.nan, 1)]).T
        median, p95 = np.quantile(np.repeat(times, counts.astype(int)), (0.5, 0.95))
        wall = self._wall - self._compiling
        return Timing(
            steps=sum(steps for _, steps in self._step_seconds),
            rows=self._rows,
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
