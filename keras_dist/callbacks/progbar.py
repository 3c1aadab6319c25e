"""`Progbar`: a progress bar for custom loops. `ProgbarLogger`: the same bar in `fit`, with loss and metrics."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from keras_dist._support.arguments import (
    argument_error,
    check_exclusive,
    check_int,
    check_number,
    check_option,
    check_optional,
    check_strings,
)
from keras_dist._support.text_tables import encodable
from keras_dist.callbacks.callback import Callback, Logs, Mode
from keras_dist.config.settings import is_interactive_logging_enabled
from keras_dist.distribution.render import render_number, render_seconds
from keras_dist.jobs.job import is_chief

_LOGGER = logging.getLogger("keras_dist")
_MOST_UNREAD = 64  # values of a name that are kept before they are read, which waits for the devices

Values = Mapping[str, Any] | None


def console_of(file: TextIO | None = None) -> Console:
    """Return a console that writes text unchanged; by default to standard output."""
    if file is not None and not hasattr(file, "write"):
        raise argument_error("file", file, "a file that is open for writing")
    return Console(file=sys.stdout if file is None else file, highlight=False, soft_wrap=True)


class Drawing:
    """Display of progress, in the first process: a bar on a terminal, and a line at the end."""

    def __init__(
        self, console: Console, total: int | None, width: int, verbose: int, interval: float, unit: str = "step"
    ) -> None:
        self.total, self.before = total, 0  # number of steps, if known; steps that another run has taken
        self.is_shown = verbose > 0 and is_chief()
        self._console, self._width, self._interval, self._unit = console, width, interval, unit
        self._logs = not is_interactive_logging_enabled()
        self._line = "-" if verbose == 2 else encodable("━", "-") * width
        self._started = self._updated = time.monotonic()
        self._progress: Progress | None = None
        if self.is_shown and verbose == 1 and console.is_interactive and not self._logs:
            self._progress = Progress(
                TextColumn("{task.completed}/{task.fields[target]}"),
                BarColumn(width),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=total, target=self._target)
            # when a loop fails, `stop` is not called, and the terminal must show its cursor again
            self._stop_progress = weakref.finalize(self, self._progress.stop)
            self._progress.start()

    @property
    def _target(self) -> int | str:
        return "Unknown" if self.total is None else self.total

    def advance(self, seen: int, read: Callable[[], Values]) -> None:
        """Update the bar to `seen` steps; `read()` is called lazily for the displayed values."""
        now = time.monotonic()
        if self._progress is not None and now - self._updated >= self._interval:
            text = self._values_text(seen, now, read())
            self._progress.update(self._task, completed=seen, total=self.total, target=self._target, description=text)
            self._updated = now

    def finish(self, seen: int, values: Values) -> None:
        """Close the bar, and print a line with these values."""
        self.stop()
        if self.is_shown:
            now = time.monotonic()
            text = self._values_text(seen, now, values)
            line = f"{seen}/{self._target} {self._line} {now - self._started:.0f}s - {text}"
            _LOGGER.info(line) if self._logs else self._console.print(line)

    def stop(self) -> None:
        """Close the bar."""
        if self._progress is not None:
            self._stop_progress()
            self._progress = None

    def _values_text(self, seen: int, now: float, values: Values) -> str:
        """Return the speed and the values as text, with as many digits as Keras."""
        means = {name: float(np.mean(value)) for name, value in (values or {}).items()}
        texts = (f"{name}: {mean:.4f}" if abs(mean) > 1e-3 else f"{name}: {mean:.4e}" for name, mean in means.items())
        return " - ".join([_speed(seen - self.before, now - self._started, self._unit), *texts])


def _speed(steps: int, seconds: float, unit: str) -> str:
    """Return steps per second, and the time of a step."""
    if steps <= 0:
        return f"0 {unit}s/s"
    each = max(seconds, 1e-9) / steps
    return f"{render_number(1 / each)} {unit}s/s ({render_seconds(each)}/{unit})"


class Progbar:
    """A progress bar for custom loops, as in `fit`: steps, remaining time, steps per second, values.

    On a terminal it is a bar that moves; otherwise, a line that is printed at the end. In a job of several processes
    all may use it, and the first process shows it.

    Values may be arrays of JAX that are still being computed. The bar shows values of earlier steps, so that no step
    waits.

    Args:
        target: number of steps; None if unknown, which is shown as `Unknown`.
        width: width of the bar, in characters.
        verbose: 0 for nothing, 1 for a bar, 2 for the line at the end alone.
        interval: minimum time between updates of the bar [s].
        stateful_metrics: names of values that are shown unchanged; of others the mean over all steps is shown.
        unit_name: name of a step.
        stateless_metrics: instead of `stateful_metrics`, the names of values of which the mean is shown.

    Raises:
        ModelError: an argument is invalid.

    Example:
        >>> from keras_dist import utils
        >>> bar = utils.Progbar(target=2, verbose=0)
        >>> for step in range(2):
        ...     bar.update(step + 1, values=[("loss", 0.5)])
    """

    def __init__(
        self,
        target: int | None,
        width: int = 30,
        verbose: int = 1,
        interval: float = 0.05,
        stateful_metrics: Iterable[str] | None = None,
        unit_name: str = "step",
        *,
        stateless_metrics: Iterable[str] | None = None,
    ) -> None:
        check_exclusive(stateful_metrics=stateful_metrics, stateless_metrics=stateless_metrics)
        self.target = check_optional(check_int, "target", target, 0)
        self.stateful_metrics = set(check_optional(check_strings, "stateful_metrics", stateful_metrics) or ())
        names = check_optional(check_strings, "stateless_metrics", stateless_metrics)
        self.stateless_metrics = None if names is None else set(names)
        self.width, self.verbose, self.interval, self.unit_name = width, verbose, interval, unit_name
        self._seen = 0
        self._values: dict[str, list[tuple[Any, int]]] = {}
        self._drawing = Drawing(
            console_of(),
            self.target,
            check_int("width", width, 1),
            check_option("verbose", verbose, (0, 1, 2)),
            check_number("interval", interval, 0),
            unit_name,
        )

    def update(
        self, current: int, values: Iterable[tuple[str, Any]] | None = None, finalize: bool | None = None
    ) -> None:
        """Update the bar.

        Args:
            current: number of finished steps.
            values: pairs of a name and a value, or a dict. A value is weighted by the steps since the last update; the
                last update shows its values unchanged.
            finalize: whether this is the last update; by default if `current` has reached the target.

        Raises:
            ModelError: an argument is invalid.
        """
        given = _as_dict(values)
        steps, self._seen = max(check_int("current", current, 0) - self._seen, 1), current
        if finalize is None:
            finalize = self.target is not None and current >= self.target
        if not self._drawing.is_shown:
            return
        self._drawing.total = self.target
        if not finalize:
            self._drawing.advance(current, self._means)
        for name, value in given.items():
            recorded = self._values.setdefault(name, [])
            means = self.stateless_metrics
            if finalize or name in self.stateful_metrics or (means is not None and name not in means):
                recorded[:] = [(value, 1)]
            else:
                if len(recorded) == _MOST_UNREAD:
                    recorded[:] = [_mean(recorded)]
                recorded.append((value, steps))
        if finalize:
            self._drawing.finish(current, self._means())

    def add(self, n: int, values: Iterable[tuple[str, Any]] | None = None) -> None:
        """Advance the bar by `n` steps; see `update`.

        Raises:
            ModelError: an argument is invalid.
        """
        self.update(self._seen + check_int("n", n, 0), values)

    def _means(self) -> dict[str, float]:
        self._values = {name: [_mean(recorded)] for name, recorded in self._values.items()}
        return {name: mean for name, [(mean, _)] in self._values.items()}


def _mean(recorded: list[tuple[Any, int]]) -> tuple[float, int]:
    """Return the weighted mean of values, and the sum of their weights."""
    steps = sum(count for _, count in recorded)
    return sum(float(np.mean(value)) * count for value, count in recorded) / steps, steps


def _as_dict(values: Any) -> dict[str, Any]:
    try:
        found = dict(values or ())
    except (TypeError, ValueError):
        found = None
    if found is None or not all(isinstance(name, str) and _is_numeric(value) for name, value in found.items()):
        raise argument_error("values", values, "pairs of a name and a number", example=[("loss", 0.5)])
    return found


def _is_numeric(value: Any) -> bool:
    """Whether it is a number or an array, without waiting for it."""
    return hasattr(value, "__array__") or np.asarray(value).dtype.kind in "biuf"


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
        super().set_params(params)
        verbose = params.get("verbose", 1)
        self._verbose = 1 if verbose == "auto" else int(verbose)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Note that the following evaluations are validations."""
        self._in_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._in_training = False
        self._stop()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self.params["epochs"] > 1 and self._verbose and is_chief():
            self._console.print(f"Epoch {epoch + 1}/{self.params['epochs']}")
        self._start()

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Record the first step of the epoch; a resumed training has taken earlier steps before."""
        if self._drawing is not None and not self._seen:
            self._drawing.before = batch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._advance(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._finish(logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        if not self._in_training:
            self._start()

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if not self._in_training:
            self._advance(batch, logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        if not self._in_training:
            self._finish(logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._start()

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._advance(batch, None)

    def on_predict_end(self, logs: Logs | None = None) -> None:
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
