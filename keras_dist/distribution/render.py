"""Plans as tables of text and of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_dist._support import html_tables
from keras_dist._support.text_tables import Table, render
from keras_dist.distribution.layout import Axis

if TYPE_CHECKING:
    from keras_dist.distribution.plan import LayoutPlan, Row

_HEADERS = ("path", "shape", "dtype", "role", "layout", "rule", "bytes", "per device")
_NUMBERS = ("bytes", "per device")
_PRIORITY = ("path", "shape", "layout", "rule", "per device")


def render_plan(plan: LayoutPlan) -> str:
    """Return the layout table of `plan`, totals last."""
    table = layout_table(plan.rows, f"Layout on mesh {plan.mesh.describe()}")
    table.totals.append(_total("total", plan.rows))
    return render(table, *(f"warning: {problem.summary}: {problem.fix}" for problem in plan.problems))


def layout_table(rows: Sequence[Row], title: str) -> Table:
    """Return a table with a line for each row of a plan."""
    return Table(title, _HEADERS, _NUMBERS, _PRIORITY, rows=[_cells(row) for row in rows])


def layout_html(rows: Sequence[Row]) -> str:
    """Return the table of `rows` as HTML, totals last."""
    return html_tables.table(_HEADERS, map(_cells, rows), numbers=_NUMBERS, totals=[_total("total", rows)])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.path,
        render_shape(row.shape),
        str(row.dtype),
        row.role,
        render_axes(row.axes),
        row.rule or "no rule",
        render_bytes(row.nbytes),
        render_bytes(row.nbytes_per_device),
    )


def _total(label: str, rows: Sequence[Row]) -> tuple[str, ...]:
    whole, per_device = sum(row.nbytes for row in rows), sum(row.nbytes_per_device for row in rows)
    return (label, *[""] * 5, render_bytes(whole), render_bytes(per_device))


def render_axes(axes: Sequence[Axis]) -> str:
    """Render `(None, "model")` as `(-, model)`, and an unsharded layout as `replicated`."""
    if not any(axes):
        return "replicated"
    entries = ["-" if axis is None else axis if isinstance(axis, str) else "+".join(axis) for axis in axes]
    return f"({', '.join(entries)})"


def render_shape(shape: Sequence[int]) -> str:
    """Render `(64, 128)` as `64 x 128`, and a scalar as `scalar`."""
    return " x ".join(str(size) for size in shape) or "scalar"


def render_bytes(nbytes: int) -> str:
    """Render a number of bytes with its binary unit, such as `1.5 MiB`."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def render_interval(least: int, most: int) -> str:
    """Render bytes that are known up to an interval, such as `0 B to 1.5 MiB`."""
    return render_bytes(most) if least == most else f"{render_bytes(least)} to {render_bytes(most)}"


def render_number(value: float) -> str:
    """Render a number with three digits, or more before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def render_seconds(seconds: float) -> str:
    """Render a time in a unit in which it is a number from 1 to 999, such as `17.1 ns`."""
    unit, size = next(((unit, size) for unit, size in _TIMES if seconds >= 0.9995 * size), _TIMES[-1])
    return f"{render_number(seconds / size)} {unit}"


_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
