"""`Throughput`: speed of training and utilization of the devices, beside the plan.

The model makes the plan: callbacks do not import the planner. Utilization is the planned time of the matrix
multiplications at the peak of the chip, divided by the measured time of a step.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import check_flag
from keras_dist._support.text_tables import Table, render
from keras_dist.callbacks.callback import Callback, EpochLogs, Logs
from keras_dist.distribution.render import render_seconds
from keras_dist.errors import ModelError
from keras_dist.jobs.job import is_chief
from keras_dist.training.throughput import Timing

TOKENS, ROWS, STEP, MFU = "tokens_per_second", "examples_per_second", "step_seconds", "mfu"


class Throughput(Callback):
    """Logs the speed of training and the utilization of the devices, and prints them beside the plan.

    The logs of each epoch get values for later callbacks and the history, without compilation and validation:

    - `tokens_per_second`, positions of integer targets (batch, length) that are as long as an input; for other data
      `examples_per_second`. `compile(report=["tokens_per_second"])` counts only tokens with a weight instead.
    - `step_seconds`, the mean duration of a step [s].
    - `mfu`, the planned FLOPs of matrix multiplications and convolutions, divided by the peak of the chip and by
      `step_seconds`. Recomputation by `compile(remat=)` does not count; by a `RematScope` and a chunked loss it does.
      It is missing if the figures of the chip are not known, as for CPUs.

    In a job of several processes, the first process prints.

    Args:
        target: the machine, as for `kd.plan`; `"here"` for the devices of the model.
        verbose: whether to print a table at the end of training.

    Raises:
        ConfigError, MeshError: at the beginning of training, when `target` is not a machine of as many devices.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> speed = kd.callbacks.Throughput(verbose=False)
        >>> history = model.fit(np.ones((64, 8)), np.ones((64, 1)), verbose=0, callbacks=speed)
        >>> [name for name in history.history]
        ['loss', 'step_seconds', 'examples_per_second']
    """

    def __init__(self, target: Any = "here", verbose: bool = True) -> None:
        super().__init__()
        self.target = target
        self.verbose = check_flag("verbose", verbose)
        self._tokens_of_row: int | None = None
        self._rows_of_batch = 0
        self._roofline: Any = None  # of the plan; None if the step or the machine is not known
        self._before: Timing | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._before = self._roofline = None
        try:
            report = self.model.plan(target=self.target, remat="none", compiles=False)
        except ModelError:  # a train step of the user that cannot be traced
            return
        rows = report.batch.rows
        self._rows_of_batch = rows[0].shape[0]
        self._tokens_of_row = _tokens_of_row({row.path: row for row in rows})
        if report.verdict is not None:
            self._roofline = report.verdict.rooflines["propagated"]

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        before, self._before = self._before, self.model.history.timing
        if logs is not None and self._before is not None:
            for name, value in self._measured(self._before, before).items():
                logs.setdefault(name, value)

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.verbose and self._before is not None and self._before.steps and is_chief():
            measured, planned = self._measured(self._before), self._planned()
            lines = [(name, _text(name, value), _text(name, planned.get(name))) for name, value in measured.items()]
            headers = ("throughput", "measured", "planned, at best") if planned else ("throughput", "measured")
            table = Table("", headers, headers[1:], rows=[line[: len(headers)] for line in lines])
            sys.stdout.write(f"{render(table)}\n")

    def _measured(self, timing: Timing, before: Timing | None = None) -> dict[str, float]:
        """Return the figures of the steps since `before`; none without steps."""
        steps, rows, seconds = timing.steps, timing.rows, timing.wall_seconds
        if before is not None:
            steps, rows, seconds = steps - before.steps, rows - before.rows, seconds - before.wall_seconds
        return self._figures(rows, seconds, seconds / steps) if steps and seconds > 0 else {}

    def _planned(self) -> dict[str, float]:
        seconds = 0.0 if self._roofline is None else self._roofline.step_seconds
        return self._figures(self._rows_of_batch, seconds, seconds) if seconds else {}

    def _figures(self, rows: int, seconds: float, step_seconds: float) -> dict[str, float]:
        speed = rows * (self._tokens_of_row or 1) / seconds
        found = {STEP: step_seconds, TOKENS if self._tokens_of_row else ROWS: speed}
        if self._roofline is not None and self._roofline.compute_seconds:
            found[MFU] = self._roofline.compute_seconds / step_seconds
        return found


def _tokens_of_row(batch: dict[str, Any]) -> int | None:
    """Return the number of tokens in a row of a planned batch, by path; None for other data."""
    target = batch.get("target")
    if target is None or len(target.shape) != 2 or not jax.numpy.issubdtype(target.dtype, np.integer):
        return None
    inputs = (row.shape for path, row in batch.items() if path.startswith("input/"))
    return math.prod(target.shape[1:]) if target.shape in inputs else None


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == STEP:
        return render_seconds(value)
    return f"{value:.1%}" if name == MFU else f"{value:,.0f}"
