"""`ProgbarLogger`: a progress bar with loss and metrics."""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from keras_dist.callbacks.callback import Callback, Logs, Mode
from keras_dist.distribution.job import is_chief

_BAR_WIDTH = 20
_SECONDS_BETWEEN_UPDATES = 0.1


class ProgbarLogger(Callback):
    """Shows the progress of training: steps, remaining time, steps per second, loss and metrics.

    `verbose=1` shows a bar on a terminal and a line per epoch elsewhere, `verbose=2` always a line per epoch,
    `verbose=0` nothing. The bar reads logs at most ten times a second, and those of the execution before the newest, so
    that no step waits for it. In a job of several processes, the first one shows it.

    Args:
        file: where to write; standard output by default.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        self._console = Console(file=file or sys.stdout, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._in_training = False
        self._verbose = 1
        self._seen = 0
        self._started = self._updated = 0.0
        self._first: tuple[int, float] | None = None
        self._last: Logs | None = None

    def sees_every_batch(self, mode: Mode) -> bool:
        """Return False: it shows the progress whenever it is called."""
        return False

    def set_params(self, params: dict[str, Any]) -> None:
        """Store the verbosity and the numbers of steps and epochs."""
        super().set_params(params)
        verbose = params.get("verbose", 1)
        self._verbose = 1 if verbose == "auto" else int(verbose)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Remember that evaluations from now on are validations."""
        self._in_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the bar."""
        self._in_training = False
        self._stop()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin a bar."""
        if self.params["epochs"] > 1:
            self._print(f"Epoch {epoch + 1}/{self.params['epochs']}")
        self._start()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Move the bar."""
        self._advance(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """End the bar with the logs of the epoch."""
        self._finish(logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Begin a bar, unless this is a validation."""
        if not self._in_training:
            self._start()

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Move the bar."""
        if not self._in_training:
            self._advance(batch, logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        """End the bar."""
        if not self._in_training:
            self._finish(logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Begin a bar."""
        self._start()

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Move the bar."""
        self._advance(batch, None)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """End the bar."""
        self._finish(None)

    def _start(self) -> None:
        self._stop()
        self._seen = 0
        self._started = self._updated = time.monotonic()
        self._first = self._last = None
        if self._verbose == 1 and self._console.is_interactive and is_chief():
            self._progress = Progress(
                MofNCompleteColumn(),
                BarColumn(_BAR_WIDTH),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=self.params["steps"])
            # when training fails nobody calls `_stop`, and the terminal must have its cursor again
            self._stop_progress = weakref.finalize(self, self._progress.stop)
            self._progress.start()

    def _advance(self, batch: int, logs: Logs | None) -> None:
        now = time.monotonic()
        self._seen = batch + 1
        if self._first is None:
            self._first = (self._seen, now)
        if self._progress is not None and now - self._updated >= _SECONDS_BETWEEN_UPDATES:
            # the logs of the execution before: waiting for the newest would hold up the next
            self._progress.update(self._task, completed=self._seen, description=self._told(now, self._last))
            self._updated = now
        self._last = logs

    def _finish(self, logs: Logs | None) -> None:
        self._stop()
        if not self._verbose:
            return
        now = time.monotonic()
        total = self.params["steps"]
        steps = f"{self._seen}/{self._seen if total is None else total}"
        bar = "-" if self._verbose == 2 else "━" * _BAR_WIDTH
        self._print(f"{steps} {bar} {now - self._started:.0f}s - {self._told(now, logs)}")

    def _told(self, now: float, logs: Logs | None) -> str:
        """Return the speed, loss and metrics as text."""
        speed = self._steps_per_second(now)
        each = f" ({1000 / speed:.3g} ms/step)" if speed else ""
        return " - ".join([f"{speed:.1f} steps/s{each}", *_values(logs)])

    def _steps_per_second(self, now: float) -> float:
        """Without the first execution, for which all is compiled, as soon as there is another."""
        steps, since = self._first or (0, self._started)
        if self._seen <= steps:
            steps, since = 0, self._started
        return (self._seen - steps) / max(now - since, 1e-9)

    def _print(self, line: str) -> None:
        if self._verbose and is_chief():
            self._console.print(line)

    def _stop(self) -> None:
        if self._progress is not None:
            self._stop_progress()
            self._progress = None


def _values(logs: Logs | None) -> list[str]:
    """Return the logs as text, with the digits that Keras shows."""
    means = {name: float(np.mean(value)) for name, value in (logs or {}).items()}
    return [f"{name}: {mean:.4f}" if abs(mean) > 1e-3 else f"{name}: {mean:.4e}" for name, mean in means.items()]
