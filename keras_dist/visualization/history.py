"""`plot_history`: plots of loss and metrics over the epochs."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist._support.text_tables import Table
from keras_dist.errors import ModelError, with_type
from keras_dist.files.drafts import replacing
from keras_dist.jobs.job import is_chief

_PANEL_INCHES = (4.0, 3.0)
_PANELS_IN_A_ROW = 3
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40


def plot_history(history: Any, path: str | os.PathLike[str] | None = None) -> Any:
    """Plot loss and metrics over the epochs, each in a panel with training and validation values.

    Args:
        history: the `History` that `fit` returned, or a dict from names to values by epoch.
        path: file to save the plot to, in the format of its suffix (`.png`, `.pdf`, `.svg`); None for no file. In a job
            of several processes, the first one saves it.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ModelError: `history` is empty, or not a history.
        MissingExtraError: matplotlib is not installed.
        OSError: the plot cannot be saved.

    Example:
        >>> from keras_dist.visualization import plot_history
        >>> figure = plot_history({"loss": [2.0, 1.0], "val_loss": [2.5, 1.5], "accuracy": [0.5, 0.75]})
        >>> [axes.get_title() for axes in figure.axes]
        ['loss', 'accuracy']
    """
    values: Mapping[str, Sequence[Any]] = getattr(history, "history", history)
    if not isinstance(values, Mapping) or not values:
        fix = "plot_history(model.fit(...)), or a dict from names to values by epoch"
        raise ModelError("plot_history: there is nothing to plot", given=f"history={with_type(history)}", fix=fix)
    numbers = epoch_numbers(history, values)
    panels = list(dict.fromkeys(name.removeprefix("val_") for name in values))
    columns = min(len(panels), _PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    # without pyplot, which opens windows and keeps figures
    figure = import_extra("matplotlib.figure", "plot", "plot_history").Figure(size, layout="constrained")
    figure._repr_png_ = functools.partial(_png, figure)  # notebooks show figures of pyplot alone
    for index, name in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(name)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            if key in values:
                _draw(axes, numbers[key], values[key], label)
        axes.legend()
    if path is not None and is_chief():
        path = path if os.path.splitext(path)[1] else f"{os.fspath(path)}.{figure.canvas.get_default_filetype()}"
        with replacing(path) as draft:
            figure.savefig(draft)
    return figure


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=72)
    return content.getvalue()


def text_plot(values: Mapping[str, np.ndarray]) -> Table:
    """Return values over the epochs as text: first value, a bar for each epoch, last value."""
    headers = ("", "first", "epochs", "last")
    lines = [(name, f"{each[0]:.5g}", _bars(each), f"{each[-1]:.5g}") for name, each in values.items()]
    return Table("", headers, ("first", "last"), rows=[*lines])


def _bars(values: np.ndarray) -> str:
    values = values[:: -(-len(values) // _MOST_BARS)]
    low, high = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=-np.inf)
    heights = (values - low) / max(high - low, 1e-12) * (len(_BARS) - 1)
    return "".join(_BARS[round(height)] if np.isfinite(height) else "?" for height in heights)


def epoch_numbers(history: Any, values: Mapping[str, Sequence[Any]]) -> dict[str, list[int]]:
    """Return for each value the number of its epoch; fewer values than epochs of a dict are of every n-th epoch."""
    count = max(map(len, values.values()), default=0)
    epochs = getattr(history, "epoch", ())
    epochs, rows_of = epochs if len(epochs) == count else range(count), getattr(history, "rows_of", {})
    found: dict[str, list[int]] = {}
    for name, each in values.items():
        step = max(1, count // len(each)) if len(each) else 1
        rows = rows_of.get(name, ())
        rows = rows if len(rows) == len(each) else [min((i + 1) * step, count) - 1 for i in range(len(each))]
        found[name] = [epochs[row] + 1 for row in rows]
    return found


def _draw(axes: Any, numbers: Sequence[int], values: Sequence[Any], label: str) -> None:
    """Draw a line for each element of the values."""
    lines = np.asarray(values, float).reshape(len(values), -1)
    for index, line in enumerate(lines.T):
        name = label if lines.shape[1] == 1 else f"{label} [{index}]"
        axes.plot(numbers, line, marker="o" if len(line) == 1 else None, label=name)
