"""`History`: the logs of every epoch."""

from __future__ import annotations

import os
from typing import Any

from keras_dist._support import html_tables
from keras_dist._support.arguments import is_number
from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.errors import MissingExtraError, shorten
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
        self._count = 0
        self.timing: Timing | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset `epoch`; values of earlier trainings with the same object are kept."""
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Append the logs of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
            self.rows_of.setdefault(name, []).append(self._count)
        self._count += 1

    def get_state(self) -> dict[str, Any]:
        """Return the values of all epochs."""
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
