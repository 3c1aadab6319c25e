"""`LoggingStep`: the interface of train and test steps; `PureStep`: a pure function as a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from keras_dist.errors import ModelError
from keras_dist.training.accumulators import Accumulator, accumulator_of, add
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.step import Batch, Draw, check_train_step
from keras_dist.training.train_state import TrainState

Logs = dict[str, Any]
"""The states of accumulators by name, on the device."""


class LoggingStep(Protocol):
    """A train or test step that accumulates its logs; `changed` are the indices of arrays that a test step changes."""

    changed: Sequence[int]
    may_read_values: bool

    def accumulators(self, state: TrainState, batch: Batch) -> dict[str, Accumulator]:
        """Return the accumulators of the logs (traced)."""
        ...

    def advance(
        self, state: TrainState, batch: Batch, logs: Logs, rows: int, draw: Draw | None
    ) -> tuple[TrainState, Logs]:
        """Return state and logs after a batch of `rows` real rows (traced); `draw` seeds a test step."""
        ...

    def hold(self, metrics: ModelMetrics, accumulators: Mapping[str, Accumulator], logs: Logs) -> None:
        """Load these logs into the metric objects of the model."""
        ...


class PureStep:
    """The function `step(state, batch) -> (state, logs)` as a step; of a test `step(state, batch, draw)`."""

    changed: Sequence[int] = ()
    may_read_values = False

    def __init__(self, step: Callable[..., Any], *, trains: bool) -> None:
        self._step, self._trains = step, trains

    def accumulators(self, state: TrainState, batch: Batch) -> dict[str, Accumulator]:
        """Return the accumulators in the order of the logs (traced); JAX would sort the names."""
        _, found = self._run(state, batch, Draw.begun(0, 0))
        return {name: accumulator_of(name, value) for name, value in found.items()}

    def advance(
        self, state: TrainState, batch: Batch, logs: Logs, rows: int, draw: Draw | None
    ) -> tuple[TrainState, Logs]:
        """Return state and logs after a batch of `rows` real rows (traced)."""
        after, found = self._run(state, batch, draw)
        if set(found) != set(logs):
            summary = "train_step logs other names than before"
            fix = "return the same names from every step"
            raise ModelError(summary, given=f"{sorted(found)}", expected=f"{sorted(logs)}", fix=fix)
        return after, {name: add(value, found[name], rows) for name, value in logs.items()}

    def hold(self, metrics: ModelMetrics, accumulators: Mapping[str, Accumulator], logs: Logs) -> None:
        """Load these logs into the metric objects of the model."""
        metrics.hold(accumulators, logs)

    def _run(self, state: TrainState, batch: Batch, draw: Draw | None) -> tuple[TrainState, Mapping[str, Any]]:
        if self._trains:
            return check_train_step(state, self._step(state, batch))
        return self._step(state, batch, draw)
