"""Tables as text, fitted to the terminal, notebook or file that shows them."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from keras_dist.errors import printable

_LEAST_WIDTH = 40  # [characters] of a table
_TERMINAL_WIDTH = 80  # of a terminal of unknown width
_NOTEBOOK_WIDTH = 120  # notebooks wrap longer lines
_COMFORT = 40  # width to which columns are wrapped before columns outside of `priority` are omitted
_LONGEST_PIECES = 24, 16  # of the first column and of others; longer ones are cut where a column is narrow
_SHORT = 10  # cells up to this width are never wrapped

_PIECE = re.compile(r"[^/ ,|]*[/ ,|]+|[^/ ,|]+")
_PART = re.compile(r"[^_.-]*[_.-]+[*+?]?|[^_.-]+")  # of a piece that is wider than its column


def available_width() -> int | None:
    """Return `COLUMNS`, or the width of the terminal, 120 in a notebook, and None for pipes and files."""
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch(r"0*[1-9][0-9]{0,8}", columns):
        return int(columns)
    stdout = sys.stdout
    if type(stdout).__module__.startswith("ipykernel."):
        return _NOTEBOOK_WIDTH
    try:
        if stdout is None or not stdout.isatty():  # pyright: ignore[reportUnnecessaryComparison]  # of pythonw
            return None
        return os.get_terminal_size(stdout.fileno()).columns or _TERMINAL_WIDTH
    except (AttributeError, OSError, ValueError):
        return _TERMINAL_WIDTH


@dataclasses.dataclass
class Table:
    """Rows of cells under headers.

    In a small width columns outside of `priority` are omitted first, from the last one on. Then cells are wrapped after
    slashes, spaces and commas. Columns of `priority` are omitted only if cells would be narrower than a word. A line
    below the table names omitted columns; totals are then sentences with all numbers.
    """

    title: str  # may be empty
    headers: Sequence[str]  # not shown if all are empty
    numbers: Collection[str] = ()  # headers of right-aligned columns, which are never wrapped
    priority: Sequence[str] = ()  # headers of columns to keep, most important first; by default all
    rows: list[Sequence[str]] = dataclasses.field(default_factory=list[Sequence[str]])
    totals: list[Sequence[str]] = dataclasses.field(default_factory=list[Sequence[str]])  # last rows, below a line
    has_lines: bool = False  # between rows

    def fits(self, width: int | None) -> bool:
        """Whether all columns fit into this width."""
        return len(self._widths(width)) == len(self.headers)

    def lines(self, width: int | None, setting: str) -> list[str]:
        """Return the lines of the table, without columns that do not fit into `width`; a hint names `setting`."""
        bar, dash, cross = encodable("│─┼", "|-+")
        widths = self._widths(width)
        line = f"{dash}{cross}{dash}".join(dash * each for each in widths.values())

        def row(cells: Sequence[str]) -> list[str]:
            wrapped = [_wrapped(printable(cells[index]), each) for index, each in widths.items()]
            is_number = [self.headers[index] in self.numbers for index in widths]
            return [
                f" {bar} ".join(
                    _padded(lines[depth] if depth < len(lines) else "", each, right)
                    for lines, each, right in zip(wrapped, widths.values(), is_number, strict=True)
                ).rstrip()
                for depth in range(max(map(len, wrapped)))
            ]

        found = _prose(self.title, width) if self.title else []
        if any(self.headers):
            found += [*row(self.headers), line]
        for index, cells in enumerate(self.rows):
            found += [line] * (self.has_lines and index > 0) + row(cells)
        if self.totals:
            found.append(line)
        left_out = [header for index, header in enumerate(self.headers) if index not in widths]
        for cells in self.totals:
            found += self._sentence(cells, width) if left_out else row(cells)
        if left_out:
            how = f"{setting}={self._needed()}{' or a terminal of that width' * (setting == 'COLUMNS')}"
            found += _prose(f"left out to fit {width} characters: {', '.join(left_out)}; {how} shows them", width)
        return found

    def _sentence(self, cells: Sequence[str], width: int | None) -> list[str]:
        """Return the lines of a total as a sentence."""
        named = zip(self.headers[1:], cells[1:], strict=True)
        return _prose(f"{cells[0]}: {', '.join(f'{header} {cell}' for header, cell in named if cell)}", width)

    def _columns(self) -> list[tuple[int, int]]:
        """Return the smallest readable width of each column, and the width of its longest cell."""
        found: list[tuple[int, int]] = []
        for index, header in enumerate(self.headers):
            texts = [text for row in (*self.rows, *self.totals) for text in printable(row[index]).split("\n")]
            widest = max(map(_length, texts), default=0)
            least = widest
            if header not in self.numbers and widest > _SHORT:
                pieces = max(_length(piece.rstrip()) for text in texts for piece in _PIECE.findall(text.lstrip()))
                indent = max(len(text) - len(text.lstrip()) for text in texts)
                least = min(widest, max(_SHORT, min(pieces, _LONGEST_PIECES[index > 0]) + indent))
            words = max(map(_length, header.split()), default=0)
            found.append((max(least, words), max(widest, _length(header))))
        return found

    def _order(self) -> list[int]:
        """Return the columns, most important first."""
        known = [*self.priority]
        return sorted(
            range(len(self.headers)),
            key=lambda index: known.index(self.headers[index]) if self.headers[index] in known else len(known) + index,
        )

    def _is_spare(self, index: int) -> bool:
        return bool(self.priority) and self.headers[index] not in self.priority

    def _needed(self) -> int:
        """Return the smallest width that omits no column."""
        columns = self._columns()
        has_spare = any(map(self._is_spare, range(len(columns))))
        return _joined(_comfortable(column) if has_spare else column[0] for column in columns)

    def _widths(self, width: int | None) -> dict[int, int]:
        """Return the width of each shown column."""
        columns, kept = self._columns(), self._order()
        if width is None:
            return {index: columns[index][1] for index in range(len(columns))}
        width = max(width, _LEAST_WIDTH)
        while self._is_spare(kept[-1]) and _joined(_comfortable(columns[index]) for index in kept) > width:
            kept.pop()
        while len(kept) > 1 and _joined(columns[index][0] for index in kept) > width:
            kept.pop()
        widths = {index: min(columns[index][0], width) for index in sorted(kept)}
        for _ in range(width - _joined(widths.values())):
            # widen the narrowest first; the most important column has the longest cells, and counts half
            narrow = {index: each / (1 + (index == kept[0])) for index, each in widths.items()}
            narrow = {index: each for index, each in narrow.items() if widths[index] < columns[index][1]}
            if not narrow:
                break
            widths[min(narrow, key=narrow.__getitem__)] += 1
        return widths


def render(*parts: Table | str, line_length: int | None = None) -> str:
    """Return tables and paragraphs as text that fits into `line_length`, by default `available_width()`."""
    width, setting = (available_width(), "COLUMNS") if line_length is None else (line_length, "line_length")
    lines: list[str] = []
    for part in parts:
        lines += part.lines(width, setting) if isinstance(part, Table) else _prose(part, width)
    return "\n".join(lines)


def _comfortable(column: tuple[int, int]) -> int:
    least, natural = column
    return max(least, min(natural, _COMFORT))


def _joined(widths: Iterable[int]) -> int:
    """Return the width of columns with separators."""
    listed = [*widths]
    return sum(listed) + 3 * (len(listed) - 1)


def _prose(text: str, width: int | None) -> list[str]:
    """Wrap a text at spaces only, since words are names, rules and code."""
    lines = printable(text).split("\n")
    if width is None:
        return lines
    found: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        found += textwrap.wrap(
            line,
            max(width, _LEAST_WIDTH),
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return found


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a cell; only trailing spaces are lost."""
    found: list[str] = []
    for line in text.split("\n"):
        if _length(line) <= width:
            found.append(line)
            continue
        indent = " " * min(len(line) - len(line.lstrip()), width // 2)
        room, lines = width - len(indent), [""]
        for piece in _PIECE.findall(line.lstrip()):
            for part in [piece] if _length(piece.rstrip()) <= room else _cut(piece, room):
                if lines[-1] and _length(lines[-1] + part.rstrip()) > room:
                    lines.append("")
                lines[-1] += part
        found += [f"{indent}{each.rstrip()}" for each in lines]
    return found


def _cut(piece: str, width: int) -> list[str]:
    """Split a piece of text that is wider than its column."""
    step = width if piece.isascii() else max(width // 2, 1)
    return [part[at : at + step] for part in _PART.findall(piece) for at in range(0, len(part), step)]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _length(text))
    return space + text if right else text + space


def _length(text: str) -> int:
    """Return the width of a text on a terminal [characters]."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def encodable(text: str, plain: str) -> str:
    """Return `text`, or `plain` if stdout cannot encode it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeError, LookupError):
        return plain
    return text
