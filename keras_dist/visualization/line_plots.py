"""Pictures of training histories and of measurements: curves and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.html_tables import escaped
from keras_dist.errors import ModelError, with_type
from keras_dist.visualization.history import text_plot
from keras_dist.visualization.picture import Bar, Drawing, Picture, bar_table, bars, below, beside, legend, titled

_PANEL = (280, 150)  # [pixels]
_PANELS_IN_A_ROW = 2
_REACHED, _MISSED = 162, 12  # hues


def plot_curves(history: Any, title: str = "training") -> Picture:
    """Draw loss and metrics over the epochs, without matplotlib.

    Values of `fit` get a panel for each name, with training and validation values. Lines of several runs share a panel
    with `title` as its heading.

    Args:
        history: the `History` that `fit` returned, a dict from names to values by epoch, or a dict from names of runs
            to histories, whose losses are compared.
        title: heading of the picture.

    Raises:
        ModelError: `history` is empty, or not a history.

    Example:
        >>> import keras_dist as kd
        >>> print(kd.visualization.plot_curves({"loss": [2.0, 1.0, 0.5], "val_loss": [2.5, 1.5, 1.0]}))
                 │ first │ epochs │ last
        ─────────┼───────┼────────┼─────
        loss     │     2 │ █▃▁    │  0.5
        val_loss │   2.5 │ █▃▁    │    1
    """
    given = getattr(history, "history", history)
    if not isinstance(given, Mapping) or not given:
        fix = "plot_curves(model.fit(...)), or a dict from names to values by epoch"
        raise ModelError("plot_curves: there is nothing to plot", given=f"history={with_type(history)}", fix=fix)
    runs = {str(name): getattr(each, "history", each) for name, each in given.items()}
    compared = all(isinstance(each, Mapping) and "loss" in each for each in runs.values())
    lines = {name: _numbers(each["loss"] if compared else each) for name, each in runs.items()}
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name, values in lines.items():
        label = "validation" if name.startswith("val_") else "training"
        panels.setdefault(title if compared else name.removeprefix("val_"), {})[name if compared else label] = values
    drawn = [titled(name, _panel(each)) for name, each in panels.items()]
    rows = [beside(*drawn[at : at + _PANELS_IN_A_ROW]) for at in range(0, len(drawn), _PANELS_IN_A_ROW)]
    return Picture(title, below(*rows), [text_plot(lines)])


def plot_bars(
    values: Mapping[str, float], title: str, unit: str = "", aims: Mapping[str, float] | None = None
) -> Picture:
    """Draw measurements as bars, such as the ratios of a benchmark or the step times of layouts.

    Args:
        values: a positive number for each name.
        title: heading of the picture.
        unit: unit of the numbers.
        aims: upper bounds for some of the names: a line marks each, and bars above it have another colour.

    Raises:
        ModelError: `values` is empty, or has a negative value.
    """
    if not values or min(values.values()) < 0:
        raise argument_error("values", values, "positive numbers by name", example={"fit": 0.9})
    aims = aims or {}
    hues = {name: _MISSED if each > aims.get(name, each) else _REACHED for name, each in values.items()}
    rows = [Bar(name, n, hues[name], f"{n:.4g} {unit}".rstrip(), aims.get(name)) for name, n in values.items()]
    return Picture(title, titled(title, bars(rows)), [bar_table(title, ("", "value"), rows)])


def _numbers(values: Sequence[Any]) -> np.ndarray:
    """Return values by epoch; several elements are averaged."""
    return np.asarray(values, float).reshape(len(values), -1).mean(1)


def _panel(lines: Mapping[str, np.ndarray]) -> Drawing:
    """Draw lines over the epochs, with the range of values at the left."""
    width, height = _PANEL
    finite = np.concatenate([*lines.values()])
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    left, most = 60, max(map(len, lines.values()))
    hues = {name: (212 + 300 * index // max(len(lines), 2)) % 360 for index, name in enumerate(lines)}
    parts = [
        f'<path d="M{left} 0V{height}H{left + width}" fill="none" stroke="currentColor" stroke-opacity="0.45"/>',
        f'<text x="{left - 6}" y="10" text-anchor="end">{high:.4g}</text>',
        f'<text x="{left - 6}" y="{height}" text-anchor="end">{low:.4g}</text>',
        f'<text x="{left + width}" y="{height + 16}" text-anchor="end">epoch {most}</text>',
    ]
    for name, values in lines.items():
        x = left + width * (np.arange(len(values)) * (most / len(values)) / max(most - 1, 1))
        y = height - height * (values - low) / (high - low or 1)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="hsl({hues[name]} 62% 50%)" stroke-width="2">'
            f"<title>{escaped(name)}</title></polyline>"
        )
    names = legend(hues)
    parts.append(f'<g transform="translate({left} {height + 26})">{names.svg}</g>')
    return Drawing("".join(parts), left + max(width, names.width), height + 38)
