"""`ProgbarLogger`: a progress bar with loss and metrics."""

from __future__ import annotations

from typing import Any, TextIO

from keras_dist.callbacks.callback import Callback, Logs, Mode
from keras_dist.callbacks.progbar import Drawing, console_of
from keras_dist.distribution.jobs.job import is_chief

_BAR_WIDTH = 20
_SECONDS_BETWEEN_UPDATES = 0.1


class ProgbarLogger(Callback):
    """Shows the progress of training: steps, remaining time, steps per second, loss and metrics.

    `verbose=1` shows a bar on a terminal and otherwise a line per epoch, `verbose=2` always a line per epoch,
    `verbose=0` nothing. The bar reads logs at most ten times a second, and of the execution before the newest, so that
    no step waits. In a job of several processes, the first process shows it.

    Args:
        file: file to write to; by default standard output.
    """

    counts_batches = True

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        self._console = console_of(file)
        self._drawing: Drawing | None = None
        self._in_training = False
        self._verbose = 1
        self._seen = 0
        self._last: Logs | None = None

    def sees_every_batch(self, mode: Mode) -> bool:
        """Return False, since progress can be shown at any batch."""
        return False

    def set_params(self, params: dict[str, Any]) -> None:
        """Store the verbosity and the numbers of steps and epochs."""
        super().set_params(params)
        verbose = params.get("verbose", 1)
        self._verbose = 1 if verbose == "auto" else int(verbose)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Note that the following evaluations are validations."""
        self._in_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the bar."""
        self._in_training = False
        self._stop()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin a bar."""
        if self.params["epochs"] > 1 and self._verbose and is_chief():
            self._console.print(f"Epoch {epoch + 1}/{self.params['epochs']}")
        self._start()

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Record the first step of the epoch; a resumed training has taken earlier steps before."""
        if self._drawing is not None and not self._seen:
            self._drawing.before = batch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Update the bar."""
        self._advance(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """End the bar with the logs of the epoch."""
        self._finish(logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Begin a bar, unless this is a validation."""
        if not self._in_training:
            self._start()

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Update the bar."""
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
        """Update the bar."""
        self._advance(batch, None)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """End the bar."""
        self._finish(None)

    def _start(self) -> None:
        self._stop()
        self._seen, self._last = 0, None
        steps = self.params["steps"]
        self._drawing = Drawing(self._console, steps, _BAR_WIDTH, self._verbose, _SECONDS_BETWEEN_UPDATES)

    def _advance(self, batch: int, logs: Logs | None) -> None:
        self._seen = batch + 1
        if self._drawing is not None:
            # logs of the execution before, since waiting for the newest would delay the next
            self._drawing.advance(self._seen, lambda: self._last)
        self._last = logs

    def _finish(self, logs: Logs | None) -> None:
        if self._drawing is not None:
            if self._drawing.total is None:
                self._drawing.total = self._seen
            self._drawing.finish(self._seen, logs)

    def _stop(self) -> None:
        if self._drawing is not None:
            self._drawing.stop()
