"""`ProgbarLogger`: a progress bar with loss and metrics."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keras_dist.callbacks.callback import Callback, Logs

_BAR_WIDTH = 20
_SECONDS_BETWEEN_UPDATES = 0.25


class ProgbarLogger(Callback):
    """Shows a bar with loss and metrics: moving on a terminal, one line for each epoch elsewhere.

    Args:
        file: where to write; standard output by default.

    Source: `keras.callbacks.ProgbarLogger`.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        self._console = Console(file=file or sys.stdout, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._started = self._updated = 0.0
        self._last: Logs | None = None
        self._in_training = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Remember that evaluations from now on are validations."""
        self._in_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the bar."""
        self._in_training = False
        self._stop()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin a bar."""
        self._console.print(f"Epoch {epoch + 1}/{self.params['epochs']}")
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
        self._started = self._updated = time.monotonic()
        self._last = None
        if self._console.is_terminal:
            columns = (
                MofNCompleteColumn(),
                BarColumn(_BAR_WIDTH),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task("", total=self.params["steps"])
            self._progress.start()

    def _advance(self, batch: int, logs: Logs | None) -> None:
        now = time.monotonic()
        if self._progress is not None and now - self._updated >= _SECONDS_BETWEEN_UPDATES:
            # the logs of the step before: waiting for the newest would hold up the next
            self._progress.update(self._task, completed=batch + 1, description=_values(self._last))
            self._updated = now
        self._last = logs

    def _finish(self, logs: Logs | None) -> None:
        self._stop()
        steps = self.params["steps"]
        seconds = time.monotonic() - self._started
        milliseconds = 1000 * seconds / max(steps, 1)
        bar = "━" * _BAR_WIDTH
        line = f"{steps}/{steps} {bar} {seconds:.1f}s {milliseconds:.0f}ms/step"
        self._console.print(f"{line} - {_values(logs)}" if logs else line)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _values(logs: Logs | None) -> str:
    return " - ".join(f"{name}: {np.mean(value):.4f}" for name, value in (logs or {}).items())
