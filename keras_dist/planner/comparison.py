"""`Comparison`: the changes from one report to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_dist._support import html_tables
from keras_dist._support.arguments import check_kind
from keras_dist._support.text_tables import Table, render
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import render_axes, render_bytes, render_shape

if TYPE_CHECKING:
    from keras_dist.planner.report import PlanReport

_MOST_LAYOUTS = 40
"""Largest number of layouts in a table; `Comparison.layouts` has all."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A number in two reports; 0 in a report without it."""

    before: int
    after: int

    @property
    def difference(self) -> int:
        """`after - before`."""
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """`after / before`; None if `before` is 0."""
        return self.after / self.before if self.before else None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, their difference and their ratio."""
        return {**dataclasses.asdict(self), "difference": self.difference, "ratio": self.ratio}


@dataclasses.dataclass(frozen=True)
class LayoutChange:
    """An array whose layout or shape differs between reports, with its row in each, or None."""

    path: str
    before: Row | None
    after: Row | None

    @property
    def nbytes(self) -> Change:
        """Bytes per device."""
        return Change(*(0 if row is None else row.nbytes_per_device for row in (self.before, self.after)))

    def to_dict(self) -> dict[str, Any]:
        """Return layouts, rules and bytes per device as plain values."""
        before, after = (
            None if row is None else {"shape": list(row.shape), "axes": _plain(row.axes), "rule": row.rule}
            for row in (self.before, self.after)
        )
        return {"path": self.path, "before": before, "after": after, "nbytes_per_device": self.nbytes.to_dict()}


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """The changes from one report to another, as `report.compare(other)` returns them. Printing it shows tables.

    Attributes:
        meshes: both meshes, as text.
        layouts: *exact*: arrays whose layouts differ, in the order of the reports.
        nbytes_by_role: *exact*: bytes per device by role.
        collectives: *propagated*: bytes of a step by kind and axes.
        flops: *propagated*: FLOPs of a step per device.
        activation_nbytes: *propagated*: estimate of bytes of intermediate results per device.
    """

    meshes: tuple[str, str]
    layouts: tuple[LayoutChange, ...]
    nbytes_by_role: Mapping[str, Change]
    collectives: Mapping[tuple[str, tuple[str, ...]], Change]
    flops: Change
    activation_nbytes: Change

    @property
    def is_empty(self) -> bool:
        """Whether the reports have no differences."""
        figures = (*self.nbytes_by_role.values(), *self.collectives.values(), self.flops, self.activation_nbytes)
        same_mesh = self.meshes[0] == self.meshes[1]
        return same_mesh and not self.layouts and not any(figure.difference for figure in figures)

    def to_dict(self) -> dict[str, Any]:
        """Return all changes as plain values for JSON."""
        return {
            "mesh": dict(zip(("before", "after"), self.meshes, strict=True)),
            "exact": {
                "layouts": [change.to_dict() for change in self.layouts],
                "nbytes_by_role": {role: change.to_dict() for role, change in self.nbytes_by_role.items()},
            },
            "propagated": {
                "collectives": [
                    {"kind": kind, "axes": list(axes), "nbytes": change.to_dict()}
                    for (kind, axes), change in self.collectives.items()
                ],
                "flops": self.flops.to_dict(),
                "activation_nbytes": self.activation_nbytes.to_dict(),
            },
        }

    def __str__(self) -> str:
        return render(f"{self._heading()}{': nothing changes' if self.is_empty else ''}", *self._tables())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = (
            html_tables.paragraph(each.title) + html_tables.table(each.headers, each.rows, numbers=each.numbers)
            for each in self._tables()
        )
        return html_tables.fragment(html_tables.paragraph(self._heading()), *tables)

    def _heading(self) -> str:
        before, after = self.meshes
        return f"On mesh {before}" if before == after else f"From mesh {before} to mesh {after}"

    def _tables(self) -> Iterator[Table]:
        if self.layouts:
            title = f"{len(self.layouts)} layouts (exact)"
            yield _table(title, "path", "layout before", "layout after", rows=self._lines())
        roles = [(f"bytes of role {role}", "exact", *_cells(change)) for role, change in self.nbytes_by_role.items()]
        intermediate = "bytes of intermediate results", "propagated", *_cells(self.activation_nbytes)
        flops = "FLOPs of a step", "propagated", *_cells(self.flops, is_bytes=False)
        yield _table("Of one device", "figure", "from", rows=[*roles, intermediate, flops])
        moved = [(kind, ", ".join(axes), *_cells(change)) for (kind, axes), change in self.collectives.items()]
        if moved:
            yield _table("Bytes of collectives of a step (propagated)", "kind", "axes", rows=moved)

    def _lines(self) -> Iterator[tuple[str, ...]]:
        """Yield a line for each layout; slots, which mostly have the layout of their parameter, come last."""
        ordered = sorted(self.layouts, key=lambda change: (change.after or change.before).role == "slot")  # type: ignore[union-attr]
        for change in ordered[:_MOST_LAYOUTS]:
            before, after = change.before, change.after
            yield change.path, _layout(before, after), _layout(after, before), *_cells(change.nbytes)
        if rest := ordered[_MOST_LAYOUTS:]:
            total = Change(sum(change.nbytes.before for change in rest), sum(change.nbytes.after for change in rest))
            yield f"{len(rest)} more", "", "", *_cells(total)


def _table(title: str, *names: str, rows: Iterable[Sequence[str]]) -> Table:
    numbers = ("before", "after", "change", "ratio")
    return Table(title, (*names, *numbers), numbers, rows=[*rows])


def compare(before: PlanReport, after: PlanReport) -> Comparison:
    """Return the changes from one report to another."""
    check_kind("other", after, type(before), "a PlanReport, as kd.plan and model.plan return it")
    rows = [{row.path: row for row in (*report.state.rows, *report.batch.rows)} for report in (before, after)]
    layouts = [LayoutChange(path, rows[0].get(path), rows[1].get(path)) for path in _united(*rows)]
    return Comparison(
        (before.state.mesh.describe(), after.state.mesh.describe()),
        tuple(change for change in layouts if _placement(change.before) != _placement(change.after)),
        _changes(before.nbytes_by_role, after.nbytes_by_role),
        _changes(before.step.nbytes_by_axes(), after.step.nbytes_by_axes()),
        Change(before.step.flops, after.step.flops),
        Change(before.step.activation_nbytes, after.step.activation_nbytes),
    )


def _changes(before: Mapping[Any, int], after: Mapping[Any, int]) -> dict[Any, Change]:
    return {key: Change(before.get(key, 0), after.get(key, 0)) for key in _united(before, after)}


def _united(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> list[Any]:
    return list(dict.fromkeys((*first, *second)))


def _placement(row: Row | None) -> object:
    """Return the compared part of a row; bytes differ for the same axes of another mesh."""
    return row and (row.shape, str(row.dtype), row.axes, row.nbytes_per_device)


def _plain(axes: Sequence[Any]) -> list[Any]:
    return [list(axis) if isinstance(axis, tuple) else axis for axis in axes]


def _layout(row: Row | None, other: Row | None) -> str:
    """Describe a layout, with the shape if it differs from the other one."""
    if row is None:
        return "not there"
    is_same = other is None or (row.shape, row.dtype) == (other.shape, other.dtype)
    return render_axes(row.axes) + ("" if is_same else f" of {render_shape(row.shape)} {row.dtype}")


def _cells(change: Change, is_bytes: bool = True) -> tuple[str, str, str, str]:
    """Return both numbers, their difference and their ratio as text."""
    show: Callable[[int], str] = render_bytes if is_bytes else "{:,}".format
    sign = "+" if change.difference > 0 else "-"
    difference = f"{sign}{show(abs(change.difference))}" if change.difference else "0"
    ratio = "-" if change.ratio is None else f"x {change.ratio:.3g}"
    return show(change.before), show(change.after), difference, ratio
