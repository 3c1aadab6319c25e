"""`Meter`: how fast steps go, and for how long no step was in flight."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_dist.training.pace import FixedPace, Pace


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


class Meter:
    """Watches the loop: told of every dispatch, of every wait, and of the end.

    Args:
        pace: learns from what is measured; None where nobody asks it.
    """

    def __init__(self, pace: Pace | FixedPace | None = None) -> None:
        self._pace = pace
        self._step_seconds: list[tuple[float, int]] = []
        self._rows = self._compilations = 0
        self._wall = self._idle = self._compiling = 0.0
        self._began = self._busy_until = self._finished = 0.0
        self._newest: Any = None

    def begin(self) -> None:
        """The first batch is about to be made."""
        self._began = self._busy_until = self._finished = time.perf_counter()
        self._newest = None

    def look(self) -> float:
        """Note whether a step is in flight now, and return when that was."""
        now = time.perf_counter()
        if self._newest is not None and not self._newest.is_ready():
            self._busy_until = now
        return now

    def dispatched(self, began: float, signal: Any, rows: int, compiled: bool) -> float:
        """A dispatch is over.

        Args:
            began: when, as `look` returned it.
            signal: an array that is ready when the steps are done.
            rows: those of all its steps.
            compiled: whether the dispatch had to compile its program.

        Returns:
            When its steps may have started, for `finished`.
        """
        self._idle += began - self._busy_until
        self._busy_until = time.perf_counter()
        self._rows += rows
        self._newest = signal
        if not compiled:
            return began
        self._compilations += 1
        self._compiling += self._busy_until - began
        return self._busy_until

    def finished(self, started: float, steps: int) -> None:
        """The oldest execution in flight was waited for."""
        now = time.perf_counter()
        seconds = now - max(started, self._finished)
        self._finished = self._busy_until = now
        self._step_seconds.append((seconds / steps, steps))
        if self._pace is not None:
            self._pace.measured(seconds, steps)

    def end(self) -> None:
        """All executions were waited for."""
        self._wall += time.perf_counter() - self._began

    def timing(self, devices: Iterable[Any]) -> Timing:
        """What was measured since the meter was made."""
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
