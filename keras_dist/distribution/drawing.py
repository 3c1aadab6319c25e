"""SVG drawings of grids of devices and shards."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

from keras_dist._support.html_tables import escaped

MOST_DEVICES = 16  # rows and columns of devices in a drawing

_FONT_PIXELS = 11
_CHARACTER_PIXELS = 6.6
_LINE_PIXELS = 18
_GAP_PIXELS = 20
_DEVICE_PIXELS = (46, 26)
_KIND_AND_NUMBER = re.compile(r"(?P<kind>.+?):(?P<number>[0-9]{1,5})")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One field of a grid: its text, its tooltip, and the CSS colour of its background, empty for none."""

    text: str
    title: str
    colour: str = ""


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table of fields, drawn as SVG. Rows and columns are numbered; None stands for an omission."""

    rows: Sequence[int | None]
    columns: Sequence[int | None]
    row_heading: Callable[[int], str]
    column_heading: Callable[[int], str]
    names: tuple[str, str]  # of rows and columns; may be empty
    cell: Callable[[int, int], Cell]
    size: tuple[float, float]  # minimum width and height of a field [pixels]
    space: float  # between fields [pixels]
    label: str  # for screen readers

    def svg(self) -> str:
        """Return the drawing as SVG."""
        cells = {
            (i, j): self.cell(row, column)
            for (i, row), (j, column) in itertools.product(enumerate(self.rows), enumerate(self.columns))
            if row is not None and column is not None
        }
        above = ["..." if column is None else self.column_heading(column) for column in self.columns]
        before = ["..." if row is None else self.row_heading(row) for row in self.rows]
        texts = [*(cell.text for cell in cells.values()), *above]
        width, height = max(self.size[0], *(_pixels(text) + 10 for text in texts)), self.size[1]
        left = max(map(_pixels, (*before, self.names[0]))) + 10 if any((*before, self.names[0])) else 1.0
        top = _LINE_PIXELS * (any(above) + bool(self.names[1])) + 1.0
        x = _places(self.columns, left, width, self.space)
        y = _places(self.rows, top, height, self.space)
        parts = [
            _text(self.names[1], left, _LINE_PIXELS - 6, weight=600),
            _text(self.names[0], left - 8, top - 6, "end", weight=600),
        ]
        parts += [
            _text(text, x[j] + _span(self.columns[j], width) / 2, top - 6, "middle") for j, text in enumerate(above)
        ]
        parts += [
            _text(text, left - 8, y[i] + _span(self.rows[i], height) / 2 + 4, "end") for i, text in enumerate(before)
        ]
        parts += [_field(cell, x[j], y[i], width, height) for (i, j), cell in cells.items()]
        whole = (
            math.ceil(x[-1] + _span(self.columns[-1], width) + 1),
            math.ceil(y[-1] + _span(self.rows[-1], height) + 1),
        )
        return (
            f'<svg role="img" aria-label="{escaped(self.label)}" width="{whole[0]}" height="{whole[1]}" '
            f'viewBox="0 0 {whole[0]} {whole[1]}" font-size="{_FONT_PIXELS}">{"".join(parts)}</svg>'
        )


def devices_svg(
    sizes: Mapping[str, int], names: Sequence[str], fields: Sequence[Cell] | None = None, most: int = MOST_DEVICES
) -> str:
    """Draw a mesh with a field for each device: the last axis along the rows, all others folded along the columns."""
    axes, shape = list(sizes), list(sizes.values())
    labels = device_labels(names)
    across = shape[-1]

    def heading(row: int) -> str:
        return ", ".join(map(str, _unravelled(row, shape[:-1])))

    def cell(row: int, column: int) -> Cell:
        index = row * across + column
        place = ", ".join(f"{axis} {n}" for axis, n in zip(axes, _unravelled(index, shape), strict=True))
        field = Cell(labels[index], "", "currentColor") if fields is None else fields[index]
        return dataclasses.replace(field, title=f"{names[index]}: {place}{field.title and f'; {field.title}'}")

    down = ", ".join(axes[:-1])
    return Grid(
        shown(math.prod(shape[:-1]), most),
        shown(across, most),
        heading,
        str,
        (f"{down} \N{DOWNWARDS ARROW}" if down else "", f"{axes[-1]} \N{RIGHTWARDS ARROW}"),
        cell,
        _DEVICE_PIXELS,
        4,
        f"{len(names)} devices: " + ", ".join(f"{axis} {size}" for axis, size in sizes.items()),
    ).svg()


def device_labels(names: Sequence[str]) -> list[str]:
    """Return a number for each device: `0` for `cpu:0` if these are distinct, else its index in the mesh."""
    parts = [_KIND_AND_NUMBER.fullmatch(name) for name in names]
    numbers = [part["number"] for part in parts if part]
    if len({part and part["kind"] for part in parts}) == 1 and len(set(numbers)) == len(names):
        return numbers
    return [str(index) for index in range(len(names))]


def shown(count: int, most: int) -> list[int | None]:
    """Return the numbers below `count`; if there are more than `most`, the first ones, None, and the last."""
    return [*range(count)] if count <= most else [*range(most - 2), None, count - 1]


def ranges(numbers: Sequence[int]) -> str:
    """Abbreviate numbers: `0-3`, `0, 4, 8`, `0-3, 16-19, ... 112-115 (32)`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}{'-' if len(run) > 2 else ', '}{run[-1]}" for run in runs]
    if len(texts) <= 4:
        return ", ".join(texts)
    return f"{', '.join(texts[:2])}, ... {texts[-1]} ({len(numbers)})"


def colour(index: int, count: int) -> str:
    """Return one of `count` colours around the hue circle."""
    return f"hsl({(212 + 300 * index // count) % 360} 62% 50%)"


def _unravelled(index: int, shape: Sequence[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        found.insert(0, rest)
    return found


def _pixels(text: str) -> float:
    return len(text) * _CHARACTER_PIXELS


def _span(number: int | None, size: float) -> float:
    return _GAP_PIXELS if number is None else size


def _places(numbers: Sequence[int | None], start: float, size: float, space: float) -> list[float]:
    """Return the coordinate of each row or column."""
    return [*itertools.accumulate((_span(number, size) + space for number in numbers[:-1]), initial=start)]


def _text(text: str, x: float, y: float, anchor: str = "start", weight: int = 400) -> str:
    if not text:
        return ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escaped(text)}</text>'


def _field(cell: Cell, x: float, y: float, width: float, height: float) -> str:
    opacity = 0.07 if cell.colour == "currentColor" else 0.3
    return (
        f"<g><title>{escaped(cell.title)}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{cell.colour or "none"}" '
        f'fill-opacity="{opacity}" stroke="currentColor" stroke-opacity="0.45"/>'
        f"{_text(cell.text, x + width / 2, y + height / 2 + 4, 'middle')}</g>"
    )
