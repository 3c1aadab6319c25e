"""`Picture`: SVG in notebooks and files, text elsewhere. Colours derive from the text's, as notebooks may be dark."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.text import Text

from keras_dist._support.arguments import check_option, check_path
from keras_dist._support.html_tables import escaped
from keras_dist._support.text_tables import Table, render
from keras_dist.files.drafts import write_file
from keras_dist.jobs.job import is_chief

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Open Sans', sans-serif"
_INK_AND_PAPER = {"light": ("#1f2328", "#ffffff"), "dark": ("#e6edf3", "#0d1117")}
_CHARACTER_PIXELS = 6.9
_BAR_PIXELS = (220, 16, 26)  # longest bar, height, distance between bars
_MARGIN, _GAP, _HEADING = 12, 28, 24  # around a picture, between drawings, above them
_BAR_CHARACTERS = 24
_SMALLEST_SCALE = 0.8  # of a picture in a notebook: smaller text is hard to read, so wide pictures scroll


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Elements of SVG, and the room that they take [pixels]."""

    svg: str
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar; `mark` draws a line across it."""

    label: str
    amount: float
    hue: int
    text: str
    mark: float | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Picture:
    """A drawing of a mesh, a plan or a training. Notebooks show SVG, printing gives text, and `save` writes a file.

    The text fits the terminal, or `COLUMNS` characters; `rich.print` colours it.
    """

    title: str
    drawing: Drawing
    text: Sequence[Table | str]

    def svg(self, theme: Literal["light", "dark"] | None = None) -> str:
        """Return the picture as SVG.

        Args:
            theme: colours of text and paper, `"light"` or `"dark"`; None for the text colour of the page around it.

        Raises:
            ModelError: the theme is unknown.
        """
        width, height = (math.ceil(size + 2 * _MARGIN) for size in (self.drawing.width, self.drawing.height))
        style, paper = f"max-width: 100%; min-width: {math.ceil(_SMALLEST_SCALE * width)}px; height: auto", ""
        if theme is not None:
            ink, colour = _INK_AND_PAPER[check_option("theme", theme, tuple(_INK_AND_PAPER), "")]
            style, paper = f"color: {ink}", f'<rect width="{width}" height="{height}" rx="6" fill="{colour}"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escaped(self.title)}" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" style="{style}">{paper}<g fill="currentColor" '
            f'font-family="{_FONT}" font-size="12" transform="translate({_MARGIN} {_MARGIN})">{self.drawing.svg}</g>'
            "</svg>\n"
        )

    def save(self, path: str | os.PathLike[str], theme: Literal["light", "dark"] = "light") -> None:
        """Write the picture to a file of SVG. In a job of several processes, the first one writes it.

        Args:
            path: path of the file, such as `"plan.svg"`.
            theme: colours of text and paper.

        Raises:
            ModelError: `path` is not a path, or the theme is unknown.
            WriteError: the file cannot be written. It is an `OSError`.
        """
        content = self.svg(theme)
        file = pathlib.Path(check_path("path", path, "plan.svg"))
        if is_chief():
            write_file(file, content)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.svg()}</div>'  # wide pictures scroll on telephones

    def __str__(self) -> str:
        return render(*self.text)

    __repr__ = __str__

    def __rich__(self) -> Text:
        coloured = Text(str(self))
        coloured.highlight_regex("[\N{LOWER ONE EIGHTH BLOCK}-\N{LEFT ONE EIGHTH BLOCK}]+", "cyan")
        return coloured


def titled(title: str, drawing: Drawing) -> Drawing:
    """Put a heading above a drawing."""
    heading = f'<text y="12" font-size="13" font-weight="600">{escaped(title)}</text>'
    width = max(drawing.width, len(title) * (_CHARACTER_PIXELS + 0.6))
    return Drawing(heading + _moved(drawing, 0, _HEADING), width, drawing.height + _HEADING)


def beside(*drawings: Drawing) -> Drawing:
    """Put drawings side by side."""
    parts, x = "", 0.0
    for each in drawings:
        parts, x = parts + _moved(each, x, 0), x + each.width + _GAP
    return Drawing(parts, x - _GAP, max(each.height for each in drawings))


def below(*drawings: Drawing) -> Drawing:
    """Put drawings one below the other."""
    parts, y = "", 0.0
    for each in drawings:
        parts, y = parts + _moved(each, 0, y), y + each.height + _GAP
    return Drawing(parts, max(each.width for each in drawings), y - _GAP)


def nested(*svgs: str) -> Drawing:
    """Return whole documents of SVG, side by side, as a drawing."""
    sizes = [[float(re.search(rf'{name}="([0-9.]+)"', svg)[1]) for name in ("width", "height")] for svg in svgs]  # type: ignore[index]
    drawn = [Drawing(svg, *size) for svg, size in zip(svgs, sizes, strict=True)]
    return beside(*drawn) if len(drawn) > 1 else drawn[0]


def bar_picture(title: str, headers: tuple[str, str], rows: Sequence[Bar]) -> Picture:
    """Return bars in one scale, with `headers` of their names and texts in the table."""
    return Picture(title, titled(title, _bars(rows)), [_bar_table(title, headers, rows)])


def _bars(rows: Sequence[Bar]) -> Drawing:
    """Draw bars one below the other, all in one scale."""
    length, height, step = _BAR_PIXELS
    left = 10 + _CHARACTER_PIXELS * max(len(bar.label) for bar in rows)
    scale = length / (max(max(bar.amount, bar.mark or 0) for bar in rows) or 1)
    parts: list[str] = []
    for bar, y in zip(rows, range(0, step * len(rows), step), strict=True):
        x = left + max(1, bar.amount * scale)
        parts.append(
            f'<text x="{left - 8:g}" y="{y + 12}" text-anchor="end">{escaped(bar.label)}</text>'
            f'<rect x="{left:.1f}" y="{y}" width="{x - left:.1f}" height="{height}" fill="hsl({bar.hue} 62% 50%)" '
            'fill-opacity="0.6" stroke="currentColor" stroke-opacity="0.45"/>'
        )
        if bar.mark is not None:
            at = left + bar.mark * scale
            parts.append(f'<path d="M{at:.1f} {y - 3}v{height + 6}" stroke="currentColor" stroke-width="2"/>')
            x = max(x, at)
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 12}">{escaped(bar.text)}</text>')
    width = left + length + 8 + _CHARACTER_PIXELS * max(len(bar.text) for bar in rows)
    return Drawing("".join(parts), width, step * len(rows) - (step - height))


def _bar_table(title: str, headers: tuple[str, str], rows: Sequence[Bar]) -> Table:
    """Return bars as text; a vertical line is at `Bar.mark`."""
    scale = _BAR_CHARACTERS / (max(max(bar.amount, bar.mark or 0) for bar in rows) or 1)
    cells: list[Sequence[str]] = []
    for bar in rows:
        drawn = "\N{FULL BLOCK}" * max(1, round(bar.amount * scale))
        if bar.mark is not None:
            drawn = drawn.ljust(at := min(round(bar.mark * scale), _BAR_CHARACTERS - 1))
            drawn = f"{drawn[:at]}\N{BOX DRAWINGS LIGHT VERTICAL}{drawn[at + 1 :]}"
        cells.append((bar.label, drawn.rstrip(), bar.text))
    return Table(title, (headers[0], "bar", headers[1]), priority=headers, rows=cells)


def legend(hues: Mapping[str, int]) -> Drawing:
    """Return the names of hues."""
    parts, x = "", 0.0
    for name, hue in hues.items():
        parts += f'<rect x="{x:.1f}" width="12" height="12" fill="hsl({hue} 62% 50%)" fill-opacity="0.6"/>'
        parts += f'<text x="{x + 18:.1f}" y="10">{escaped(name)}</text>'
        x += 34 + _CHARACTER_PIXELS * len(name)
    return Drawing(parts, x, 12)


def _moved(drawing: Drawing, x: float, y: float) -> str:
    return f'<g transform="translate({x:g} {y:g})">{drawing.svg}</g>'
