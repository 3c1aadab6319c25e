"""`CSVLogger`: the logs of every epoch in a CSV file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error, check_path
from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.distribution.jobs.job import is_chief
from keras_dist.errors import ModelError, shorten
from keras_dist.saving.drafts import writing_to


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
        """Write a row."""
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
        self._write("a", text.getvalue())

    def get_state(self) -> dict[str, Any]:
        """Return the columns and the content of the file, which is small."""
        if not is_chief():
            return {"columns": self._columns, "text": ""}
        with writing_to(self.filename), open(self.filename, newline="") as file:
            return {"columns": self._columns, "text": file.read()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the file as it was after the finished epochs."""
        self._columns = state["columns"]
        if is_chief():
            self._write("w", state["text"])

    def _write(self, mode: str, text: str) -> None:
        with writing_to(self.filename), open(self.filename, mode, newline="") as file:
            file.write(text)

    def _is_empty_or_fits(self, columns: list[str]) -> bool:
        """Return whether the file is empty; raise if it has other columns."""
        with writing_to(self.filename), open(self.filename, newline="") as file:
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
