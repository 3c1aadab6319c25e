"""The logs of every epoch: `History` keeps them, `CSVLogger` writes them to a file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist._support import html_tables
from keras_dist._support.arguments import argument_error, check_path, is_number
from keras_dist.callbacks.callback import Callback, Logs, logging_of
from keras_dist.callbacks.terminate_on_nan import warns_of_nan
from keras_dist.errors import MissingExtraError, ModelError, shorten
from keras_dist.files.drafts import write_file, writing_to
from keras_dist.jobs.job import is_chief
from keras_dist.training.throughput import Timing
from keras_dist.visualization import plot_curves, plot_history
from keras_dist.visualization.history import epoch_numbers


class History(Callback):
    """The logs of every epoch; returned by `fit`.

    Attributes:
        history: for each name (`loss`, `val_loss`, ...) its value in each epoch.
        epoch: numbers of the epochs.
        rows_of: for each name the indices of the epochs that have a value, among all epochs of this object;
            `validation_freq` skips some.
        timing: speed of the steps so far; None before the end of the first epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []
        self.rows_of: dict[str, list[int]] = {}
        self._count, self._warned = 0, False
        self.timing: Timing | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset `epoch`; values of earlier trainings with the same object are kept."""
        self.epoch, self._warned = [], False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._warn_of_nan()

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._warn_of_nan()

    def _warn_of_nan(self) -> None:
        """Warn once if the loss of the last epoch is NaN, unless a callback as `TerminateOnNaN` ends the training."""
        if self._warned or not self.epoch or self.model.stop_training:
            return
        last = {name: values[-1] for name, values in self.history.items() if values}
        hint = " TerminateOnNaN() names the first batch, or variable."
        self._warned = warns_of_nan(self.model, last, f"epoch {self.epoch[-1] + 1}", hint)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
            self.rows_of.setdefault(name, []).append(self._count)
        self._count += 1

    def get_state(self) -> dict[str, Any]:
        lists = {"history": self.history, "rows_of": self.rows_of}
        copies = {key: {name: list(values) for name, values in each.items()} for key, each in lists.items()}
        return {"epoch": list(self.epoch), "count": self._count, **copies}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the values of all epochs.

        Raises:
            ValueError: `state` is not a history.
        """
        epoch, history, rows_of = state["epoch"], state["history"], state.get("rows_of", {})
        lists = (epoch, *history.values(), *rows_of.values())
        if not all(isinstance(values, list) for values in lists):
            raise ValueError("epochs and values must be lists")
        self.epoch, self.history, self.rows_of = epoch, history, rows_of
        self._count = state.get("count", len(epoch))

    def _repr_html_(self) -> str:
        numbers = epoch_numbers(self, self.history)
        columns = [dict(zip(numbers[name], values, strict=True)) for name, values in self.history.items()]
        epochs = sorted({number for column in columns for number in column})
        lines = [(number, *(_text(column.get(number)) for column in columns)) for number in epochs]
        headers = ("epoch", *self.history)
        heading = html_tables.paragraph(f"History of {len(epochs)} epochs")
        return html_tables.fragment(heading, html_tables.table(headers, lines, numbers=headers))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot loss and metrics over the epochs; see `keras_dist.visualization.plot_history`.

        Args:
            path: file to save the plot to, or None.

        Returns:
            The `matplotlib.figure.Figure`; without matplotlib and a `path`, the picture of `plot_curves`.

        Raises:
            ModelError: the history is empty.
            MissingExtraError: matplotlib is not installed, and `path` is given: `pip install matplotlib`.
        """
        try:
            return plot_history(self, path)
        except MissingExtraError:
            if path is not None:
                raise
            return plot_curves(self)


def _text(value: Any) -> str:
    return "" if value is None else f"{float(value):.5g}" if is_number(value) else shorten(value)


class CSVLogger(Callback):
    """Writes the logs of every epoch to a CSV file: a column `epoch`, and one for each name.

    In a job of several processes, the first process writes.

    Args:
        filename: the file; its folder must exist.
        separator: one character, between columns.
        append: whether to append to an existing file.

    Raises:
        ModelError: `filename` is not a path, or `separator` is not one character. Raised at the end of the first epoch
            if the file to append to has other columns.
        WriteError: the file cannot be written. Raised when training begins; also an `OSError`.

    Example:
        >>> import pathlib, tempfile
        >>> import keras_dist as kd
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> logger = kd.callbacks.CSVLogger(path)
        >>> logger.on_train_begin()
        >>> logger.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.75})
        >>> print(path.read_text().strip())
        epoch,loss,val_loss
        0,0.5,0.75

    Differs from Keras: appending to a file with other columns is an error; the file is open only while it is written.
    """

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        super().__init__()
        if not isinstance(separator, str) or len(separator) != 1:
            raise argument_error("separator", separator, "a string of length 1", example=";")
        self.filename = check_path("filename", filename, "log.csv")
        self.separator = separator
        self.append = append
        self._columns: list[str] | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Create the file, or empty it."""
        self._columns = None
        if is_chief():
            self._write("a" if self.append else "w", "")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if not is_chief():
            return
        values = dict(logs or {})
        is_new = False
        if self._columns is None:
            self._columns = _columns(values)
            is_new = self._is_empty_or_fits(self._columns)
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=self.separator)
        if is_new:
            writer.writerow(self._columns)
        row = {"epoch": epoch, **{name: _cell(value) for name, value in values.items()}}
        writer.writerow([row.get(column, "NA") for column in self._columns])
        with logging_of(self, OSError):
            self._write("a", text.getvalue())

    def get_state(self) -> dict[str, Any]:
        """Return the columns and the content of the file, which is small."""
        if not is_chief():
            return {"columns": self._columns, "text": ""}
        with writing_to(self.filename), open(self.filename, newline="", encoding="utf-8") as file:
            return {"columns": self._columns, "text": file.read()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the file as it was after the finished epochs."""
        self._columns = state["columns"]
        if is_chief():
            write_file(self.filename, state["text"])

    def _write(self, mode: str, text: str) -> None:
        with writing_to(self.filename), io.FileIO(self.filename, mode) as file:
            before, rest = os.fstat(file.fileno()).st_size, text.encode()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(before)  # the next row would continue a part of this one
                raise

    def _is_empty_or_fits(self, columns: list[str]) -> bool:
        """Return whether the file is empty; raise if it has other columns."""
        with writing_to(self.filename), open(self.filename, newline="", encoding="utf-8") as file:
            if not os.fstat(file.fileno()).st_size:
                return True
            found = next(csv.reader(file, delimiter=self.separator), [])
        if found != columns:
            summary = f"CSVLogger: the file {self.filename!r} has other columns"
            fix = "append to a file of the same metrics and separator, write to another, or leave out append=True"
            raise ModelError(summary, given=f"columns {shorten(found)}", expected=f"columns {columns}", fix=fix)
        return False


def _columns(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns; if the first epoch had no validation, later epochs may have."""
    names = sorted(values)
    if not any(name.startswith("val_") for name in names):
        names += [f"val_{name}" for name in names]
    return ["epoch", *names]


def _cell(value: Any) -> Any:
    return f'"[{", ".join(map(str, value))}]"' if np.ndim(value) else value
