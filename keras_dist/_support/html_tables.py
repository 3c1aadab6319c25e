"""Tables as HTML, for notebooks and pages.

All colours derive from the text colour, so that tables are readable in every theme of a notebook.

No scripts, and a policy that forbids loading anything: reports are mailed and opened from file systems.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

STYLE = """
.kd { font-family: system-ui, -apple-system, "Segoe UI", "Open Sans", sans-serif; font-size: 14px; line-height: 1.45; }
.kd svg { display: block; max-width: 100%; height: auto; color: inherit; }
.kd svg text { font-family: inherit; fill: currentColor; }
.kd p { margin: 0 0 8px; }
.kd h3, .kd h4 { font-size: 14px; font-weight: 600; margin: 0 0 4px; overflow-wrap: anywhere; color: inherit; }
.kd h4 { font-size: 15px; margin: 16px 0 8px; }
.kd .kd-tag { font-size: 12px; font-weight: 400; margin-left: 8px; padding: 1px 8px; border-radius: 9px;
  border: 1px solid color-mix(in srgb, currentColor 25%, transparent); vertical-align: 1px; }
.kd .kd-scroll { max-height: 480px; overflow: auto; }
.kd table.kd-table { border-collapse: collapse; border: 0; margin: 0 0 12px; font-size: 13px; color: inherit;
  font-variant-numeric: tabular-nums; }
.kd table.kd-table th, .kd table.kd-table td { padding: 3px 14px 3px 0; text-align: left; vertical-align: top;
  border: 0;
  border-bottom: 1px solid color-mix(in srgb, currentColor 16%, transparent); background: none; color: inherit;
  max-width: 420px; overflow-wrap: anywhere; white-space: pre-line; }
.kd table.kd-table th { font-weight: 600; border-bottom-color: color-mix(in srgb, currentColor 55%, transparent);
  white-space: nowrap; }
.kd table.kd-table tfoot td { font-weight: 600; border-bottom: 0; }
.kd table.kd-table .kd-number { text-align: right; padding-right: 0; padding-left: 14px; white-space: nowrap; }
.kd figure { margin: 0 0 16px; }
.kd figcaption { margin: 0 0 6px; }
.kd code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 12px; overflow-wrap: anywhere;
  background: none; color: inherit; padding: 0; }
"""


def escaped(text: object) -> str:
    """Escape a text for HTML elements and quoted attributes."""
    return html.escape(str(text))


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    totals: Iterable[Sequence[object]] = (),
) -> str:
    """Return a table with `totals` as its last rows; columns whose header is in `numbers` are right-aligned."""
    classes = [' class="kd-number"' if header in numbers else "" for header in headers]

    def line(cells: Sequence[object], tag: str = "td") -> str:
        filled = zip(classes, cells, strict=True)
        return f"<tr>{''.join(f'<{tag}{kind}>{escaped(cell)}</{tag}>' for kind, cell in filled)}</tr>"

    last = "".join(map(line, totals))
    return (
        f'<table class="kd-table"><thead>{line(headers, "th")}</thead><tbody>{"".join(map(line, rows))}</tbody>'
        + (f"<tfoot>{last}</tfoot>" if last else "")
        + "</table>"
    )


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{escaped(text)}</p>"


def fragment(*parts: str) -> str:
    """Join parts of HTML, with style and scrolling, for display in a notebook."""
    return f'<div class="kd"><style>{STYLE}</style><div class="kd-scroll">{"".join(parts)}</div></div>'
