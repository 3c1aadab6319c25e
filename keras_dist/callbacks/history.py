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


class History(Callback):
    """The logs of every epoch; returned by `fit`.

    Attributes:
        history: for each name (`loss`, `val_loss`, ...) its value in each epoch.
        epoch: numbers of the epochs.
        timing: speed of the steps so far; None before the end of the first epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []
        self.timing: Timing | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset `epoch`; values of earlier trainings with the same object are kept."""
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Append the logs of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)

    def get_state(self) -> dict[str, Any]:
        """Return the values of all epochs."""
        return {"epoch": list(self.epoch), "history": {name: list(values) for name, values in self.history.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the values of all epochs.

        Raises:
            ValueError: `state` is not a history.
        """
        epoch, history = state["epoch"], state["history"]
        if not isinstance(epoch, list) or not all(isinstance(values, list) for values in history.values()):
            raise ValueError("epochs and values must be lists")
        self.epoch, self.history = epoch, history

    def _repr_html_(self) -> str:
        count = max(map(len, self.history.values()), default=0)
        epochs = self.epoch if len(self.epoch) == count else range(count)
        columns = [_by_epoch(values, count) for values in self.history.values()]
        lines = [(epoch + 1, *texts) for epoch, *texts in zip(epochs, *columns, strict=True)]
        headers = ("epoch", *self.history)
        heading = html_tables.paragraph(f"History of {count} epochs")
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


def _by_epoch(values: list[Any], count: int) -> list[str]:
    """Return a text for each epoch; fewer values than epochs belong to every n-th epoch."""
    step = max(1, count // len(values)) if values else 1
    texts = [""] * count
    for index, value in enumerate(values):
        place = min((index + 1) * step, count) - 1
        texts[place] = f"{float(value):.5g}" if is_number(value) else shorten(value)
    return texts
