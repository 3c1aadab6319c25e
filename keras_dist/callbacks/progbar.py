"""`Progbar`: a progress bar for loops of one's own; `Drawing`: what it and that of `fit` look like."""

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
)
from keras_dist.config.settings import is_interactive_logging_enabled
from keras_dist.distribution.jobs.job import is_chief

_LOGGER = logging.getLogger("keras_dist")
_MOST_UNREAD = 64
"""How many values of a name are kept before they are waited for."""

Values = Mapping[str, Any] | None


def console_of(file: TextIO | None = None) -> Console:
    """Return a console that writes text as it is; to standard output by default."""
    return Console(file=file or sys.stdout, highlight=False, soft_wrap=True)


class Drawing:
    """Progress as it is shown, by the first process: a bar on a terminal while steps go on, and a line at the end.

    Args:
        console: where it is shown.
        total: the number of steps; None for an unknown one. May be set later.
        width: of the bar, in characters.
        verbose: 1 for a bar and a line, 2 for a line alone, 0 for nothing.
        interval: how many seconds a bar stays as it is, at least.
        unit: what a step is called.

    Attributes:
        before: how many of the steps another run has taken.
    """

    def __init__(
        self, console: Console, total: int | None, width: int, verbose: int, interval: float, unit: str = "step"
    ) -> None:
        self.total, self.before = total, 0
        self.is_shown = verbose > 0 and is_chief()
        self._console, self._width, self._interval, self._unit = console, width, interval, unit
        self._logs = not is_interactive_logging_enabled()
        self._line = "-" if verbose == 2 else "━" * width
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
            # when a loop fails nobody calls `stop`, and the terminal must have its cursor again
            self._stop_progress = weakref.finalize(self, self._progress.stop)
            self._progress.start()

    @property
    def _target(self) -> int | str:
        return "Unknown" if self.total is None else self.total

    def advance(self, seen: int, read: Callable[[], Values]) -> None:
        """Move the bar to `seen` steps, with the values that `read()` returns, which is called when it moves."""
        now = time.monotonic()
        if self._progress is not None and now - self._updated >= self._interval:
            told = self._told(seen, now, read())
            self._progress.update(self._task, completed=seen, total=self.total, target=self._target, description=told)
            self._updated = now

    def finish(self, seen: int, values: Values) -> None:
        """Close the bar, and print a line with these values."""
        self.stop()
        if self.is_shown:
            now = time.monotonic()
            told = self._told(seen, now, values)
            line = f"{seen}/{self._target} {self._line} {now - self._started:.0f}s - {told}"
            _LOGGER.info(line) if self._logs else self._console.print(line)

    def stop(self) -> None:
        """Close the bar."""
        if self._progress is not None:
            self._stop_progress()
            self._progress = None

    def _told(self, seen: int, now: float, values: Values) -> str:
        """Return the speed and the values as text, with the digits that Keras shows."""
        means = {name: float(np.mean(value)) for name, value in (values or {}).items()}
        texts = (f"{name}: {mean:.4f}" if abs(mean) > 1e-3 else f"{name}: {mean:.4e}" for name, mean in means.items())
        return " - ".join([_speed(seen - self.before, now - self._started, self._unit), *texts])


def _speed(steps: int, seconds: float, unit: str) -> str:
    """Return steps per second, and the time of a step, in a unit in which it is a number from 1 to 999, if one is."""
    if steps <= 0:
        return f"0 {unit}s/s"
    each = max(seconds, 1e-9) / steps
    size, name = next(((size, name) for size, name in _TIMES if each >= 0.9995 * size), _TIMES[-1])
    return f"{_digits(1 / each)} {unit}s/s ({_digits(each / size)} {name}/{unit})"


_TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def _digits(value: float) -> str:
    """Return a number with three digits, or all those before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


class Progbar:
    """A progress bar for a loop of one's own, as `fit` shows it: steps, remaining time, steps per second, values.

    On a terminal it is a bar that moves; elsewhere, a line that is printed at the end. In a job of several processes
    all may use it, and the first one shows it.

    Values may be arrays of JAX that are still being computed: what is shown are those before the newest, so that no
    step waits for them.

    Args:
        target: the number of steps; None where it is not known, which is shown as `Unknown`.
        width: of the bar, in characters.
        verbose: 0 for nothing, 1 for a bar, 2 for the line at the end alone.
        interval: how many seconds a bar stays as it is, at least.
        stateful_metrics: names of values that are shown as they are; of others the mean over all steps is shown.
        unit_name: what a step is called.
        stateless_metrics: in place of `stateful_metrics`, the names of values of which the mean is shown.

    Raises:
        ModelError: an argument is none of these.

    Example:
        >>> from keras_dist import utils
        >>> bar = utils.Progbar(target=2, verbose=0)
        >>> for step in range(2):
        ...     bar.update(step + 1, values=[("loss", 0.5)])

    Source: `keras.utils.Progbar`.
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
        self.stateful_metrics = set(stateful_metrics or ())
        self.stateless_metrics = None if stateless_metrics is None else set(stateless_metrics)
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
        """Move the bar.

        Args:
            current: how many steps are done.
            values: pairs of a name and the value since the last update, which counts for each step since then; in the
                last update, the value that is shown. A dict may be given, too.
            finalize: whether this is the last update; by default when `current` has reached the target.

        Raises:
            ModelError: an argument is none of these.
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
            noted = self._values.setdefault(name, [])
            means = self.stateless_metrics
            if finalize or name in self.stateful_metrics or (means is not None and name not in means):
                noted[:] = [(value, 1)]
            else:
                if len(noted) == _MOST_UNREAD:
                    noted[:] = [_mean(noted)]
                noted.append((value, steps))
        if finalize:
            self._drawing.finish(current, self._means())

    def add(self, n: int, values: Iterable[tuple[str, Any]] | None = None) -> None:
        """Move the bar by `n` steps; see `update`.

        Raises:
            ModelError: `n` is no number of steps, or `values` are no pairs.
        """
        self.update(self._seen + check_int("n", n, 0), values)

    def _means(self) -> dict[str, float]:
        self._values = {name: [_mean(noted)] for name, noted in self._values.items()}
        return {name: mean for name, [(mean, _)] in self._values.items()}


def _mean(noted: list[tuple[Any, int]]) -> tuple[float, int]:
    """Return the mean of values by the steps for which they count, and the number of these."""
    steps = sum(count for _, count in noted)
    return sum(float(np.mean(value)) * count for value, count in noted) / steps, steps


def _as_dict(values: Any) -> dict[str, Any]:
    try:
        found = dict(values or ())
    except (TypeError, ValueError):
        found = None
    if found is None or not all(isinstance(name, str) and _is_numeric(value) for name, value in found.items()):
        raise argument_error("values", values, "pairs of a name and a number", example=[("loss", 0.5)])
    return found


def _is_numeric(value: Any) -> bool:
    """Whether it is a number or an array, which is not waited for."""
    return hasattr(value, "__array__") or np.asarray(value).dtype.kind in "biuf"
