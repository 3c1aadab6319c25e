"""Reports as HTML: self-contained pages, and fragments for notebooks.

`_outline` has the sections in order. Empty sections are left out.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from keras_dist._support import html_tables
from keras_dist._support.arguments import check_path
from keras_dist._support.html_tables import escaped, paragraph, table
from keras_dist.distribution.device_blocks import picture_of
from keras_dist.distribution.drawing import device_labels, devices_svg
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import (
    layout_html,
    render_axes,
    render_bytes,
    render_interval,
    render_seconds,
    render_shape,
)
from keras_dist.files.drafts import write_file
from keras_dist.jobs.job import is_chief

if TYPE_CHECKING:
    from keras_dist.distribution.lint import Problem
    from keras_dist.planner.report import PlanReport
    from keras_dist.planner.verdict import Verdict

_MOST_PICTURES = 24
"""Largest number of pictures of shards."""

_LEAST_SHARE = 0.001
"""Smallest share of all bytes for which there is a picture."""

_BAR_PIXELS = (520, 18, 30)
"""Length of the longest bar, height, distance between bars."""

_HUES = {
    "parameter": 212,
    "slot": 262,
    "statistic": 162,
    "state": 132,
    "gradient": 22,
    "rng": 322,
    "counter": 92,
    "batch": 42,
}
_INTERMEDIATE = "intermediate results"

COLLECTIVE_HEADERS = ("kind", "axes", "layer", "operation", "turns", "bytes")
DIFFERENCE_HEADERS = ("kind", "axes", "propagated", "compiled", "difference")

_PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2329; --card: #f5f6f8; --line: #d5d9de; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e3e7ec; --card: #1d2126; --line: #3a4048; } }
body { margin: 0; background: var(--paper); color: var(--ink); }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
main h1 { font-size: 24px; font-weight: 600; margin: 0 0 4px; }
main h2 { font-size: 17px; font-weight: 600; margin: 36px 0 12px; padding-top: 14px;
  border-top: 1px solid var(--line); }
main .card .kd-tag { margin-left: 0; }
main .cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 20px 0 0; }
main .card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 12px 16px; }
main .card b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
main .shards { border: 1px solid var(--line); border-radius: 6px; padding: 14px 16px; margin: 0 0 12px; }
main .shards p { margin: 2px 0 10px; font-size: 13px; }
main details { margin: 0 0 10px; font-size: 13px; }
main details ul { margin: 4px 0 0; padding-left: 20px; columns: 2; }
@media (max-width: 720px) {
  main { padding: 20px 14px 40px; }
  main section, main .shards { overflow-x: auto; }
  main.kd svg { max-width: none; flex-shrink: 0; }
  main.kd table.kd-table { display: block; overflow-x: auto; }
  main.kd table.kd-table th, main.kd table.kd-table td { overflow-wrap: normal; }
  main details ul { columns: 1; overflow-wrap: anywhere; }
}
@media print { main h2, main .shards { break-inside: avoid; } }
"""


def write_page(report: PlanReport, path: str | os.PathLike[str]) -> None:
    """Write `page_of(report)` to a file, in the first process of a job."""
    place = pathlib.Path(check_path("path", path, "plan.html"))
    if is_chief():
        write_file(place, page_of(report))


def page_of(report: PlanReport) -> str:
    """Return a page without scripts, which loads nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    title = f"Plan of a train step on mesh {report.state.mesh.describe()}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{html_tables.STYLE}{_PAGE_STYLE}</style></head>"
        f'<body><main class="kd"><h1>Plan of a train step</h1>{paragraph(_subtitle(report))}'
        f"{_cards(report)}{_sections(report, 'h2')}</main></body></html>\n"
    )


def fragment_of(report: PlanReport) -> str:
    """Return the representation in notebooks."""
    return html_tables.fragment(paragraph(f"Plan of a train step, {_subtitle(report)}"), _sections(report, "h4"))


def _sections(report: PlanReport, heading: str) -> str:
    parts: list[str] = []
    for title, tier, content in _outline(report):
        if content:
            tag = f' <span class="kd-tag">{tier}</span>' if tier else ""
            parts.append(f"<section><{heading}>{escaped(title)}{tag}</{heading}>{content}</section>")
    return "".join(parts)


def _subtitle(report: PlanReport) -> str:
    mesh = report.state.mesh
    target = "" if report.verdict is None else f", for {report.verdict.target}"
    return f"on mesh {mesh.describe()} of {mesh.size} devices{target}"


def _cards(report: PlanReport) -> str:
    cards = (
        (render_bytes(report.state.nbytes_per_device), "state on each device", "exact"),
        (f"\N{ALMOST EQUAL TO} {render_bytes(report.step.activation_nbytes)}", _INTERMEDIATE, "propagated"),
        (render_interval(*report.step.moved_interval), "moved in a step", _tier(report)),
        (_in_units(report.step.flops), "FLOPs of a step on each device", "propagated"),
    )
    shown = (
        f'<div class="card"><b>{escaped(value)}</b>{escaped(label)}<br><span class="kd-tag">{tier}</span></div>'
        for value, label, tier in cards
    )
    return f'<div class="cards">{"".join(shown)}</div>'


def _tier(report: PlanReport) -> str:
    """Return the tier of collectives."""
    return "estimate" if report.step.estimates else "propagated"


def _in_units(number: float) -> str:
    """Format a large number with a unit prefix, as `6.36 M`."""
    for unit in ("", " K", " M", " G", " T"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.3g} P"


def fixes_once(problems: Sequence[Problem]) -> list[str]:
    """Return the fix of each problem; empty where an earlier problem has the same, such as a map of rules."""
    fixes = [problem.fix for problem in problems]
    return ["" if fix in fixes[:index] else fix for index, fix in enumerate(fixes)]


def _outline(report: PlanReport) -> Iterator[tuple[str, str, str]]:
    """Yield heading, tier and content of each section."""
    problems, fixes = report.problems, fixes_once(report.problems)
    rows = [(each.summary, each.given, fix) for each, fix in zip(problems, fixes, strict=True)]
    yield "Problems", "", table(("what is wrong", "where", "fix"), rows) if rows else ""
    yield "Chosen and assumed", "", "".join(map(paragraph, (*report.kernels, *report.assumed)))
    mesh, step = report.state.mesh, report.step
    label, name = device_labels(mesh.device_names)[0], mesh.device_names[0]
    caption = paragraph(f"{mesh.size} devices; device {label} is {name}")
    yield "Mesh", "", caption + devices_svg(mesh.axis_sizes, mesh.device_names)
    yield "Target", "", _target(report.verdict) if report.verdict else ""
    bars = [_bytes_bar(role, nbytes, "exact", _HUES[role]) for role, nbytes in report.nbytes_by_role.items()]
    bars.append(_bytes_bar(_INTERMEDIATE, step.activation_nbytes, "propagated", None))
    yield "Memory of each device by role", "", _bars(bars)
    *lines, total = report.collective_lines()
    moved = table(COLLECTIVE_HEADERS, lines, numbers=("turns", "bytes"), totals=[total])
    yield "Collectives of a step", _tier(report), moved if lines else paragraph("Nothing moves.")
    lines = report.difference_lines()
    compared = table(DIFFERENCE_HEADERS, lines, numbers=DIFFERENCE_HEADERS[2:])
    yield "Collectives, propagated and compiled", "", compared if lines else ""
    yield "Shards of large variables", "exact", _shards(report)
    slots = [row for row in report.state.rows if row.role == "slot"]
    summary = f"{len(slots)} optimizer slots, most with the layouts of their parameters"
    more = f"<details><summary>{summary}</summary>{layout_html(slots)}</details>"
    yield "Layout", "exact", layout_html(_rows(report)) + (more if slots else "")
    yield "Activations", "propagated", _activations(report)


@dataclasses.dataclass(frozen=True)
class _Bar:
    """A bar with its label and the text beside it; without a hue for a bound."""

    label: str
    amount: float
    text: str
    hue: int | None


def _target(verdict: Verdict) -> str:
    sizes = [
        _bytes_bar("state and batch", verdict.least_nbytes, "exact", _HUES["parameter"]),
        _bytes_bar("with intermediates", verdict.most_nbytes, "propagated", None),
    ]
    if verdict.compiled is not None:
        sizes.append(_bytes_bar("at the peak", verdict.compiled.peak_nbytes, "compiled", _HUES["slot"]))
    if verdict.limit_nbytes:
        sizes.append(_bytes_bar("memory of a device", verdict.limit_nbytes, "the limit", None))
    times = "".join(
        paragraph(f"Least times of a step ({tier})")
        + _bars(
            [_Bar(name, seconds, render_seconds(seconds), 22) for name, seconds in line.seconds_by_resource.items()]
        )
        for tier, line in verdict.rooflines.items()
    )
    return paragraph(str(verdict)) + _bars(sizes) + times


def _bytes_bar(label: str, nbytes: int, tier: str, hue: int | None) -> _Bar:
    return _Bar(label, nbytes, f"{render_bytes(nbytes)} ({tier})", hue)


def _bars(bars: Sequence[_Bar]) -> str:
    """Draw bars one below the other; bars of bounds are hollow."""
    length, height, step = _BAR_PIXELS
    most = max((bar.amount for bar in bars), default=0) or 1
    left = max(190.0, *(len(bar.label) * 7.4 + 16 for bar in bars))
    parts = [
        f'<text x="{left - 10:g}" y="{top + 13}" text-anchor="end">{escaped(bar.label)}</text>'
        f'<rect x="{left:g}" y="{top}" width="{max(1.0, length * bar.amount / most):.1f}" height="{height}" '
        + ('fill="currentColor" fill-opacity="0.12"' if bar.hue is None else f'fill="hsl({bar.hue} 62% 50%)" ')
        + (' stroke-dasharray="4 3"' if bar.hue is None else 'fill-opacity="0.65"')
        + f' stroke="currentColor" stroke-opacity="0.6"/>'
        f'<text x="{left + max(1.0, length * bar.amount / most) + 10:.1f}" y="{top + 13}">{escaped(bar.text)}</text>'
        for bar, top in zip(bars, range(4, 4 + len(bars) * step, step), strict=True)
    ]
    size = (round(left) + length + 240, len(bars) * step + 4)
    label = "; ".join(f"{bar.label} {bar.text}" for bar in bars)
    return (
        f'<svg role="img" aria-label="{escaped(label)}" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" font-size="13">{"".join(parts)}</svg>'
    )


def _shards(report: PlanReport) -> str:
    groups = _alike(_rows(report))
    whole = sum(row.nbytes for group in groups for row in group)
    large = [group for group in groups if sum(row.nbytes for row in group) >= _LEAST_SHARE * whole][:_MOST_PICTURES]
    rest = sum(map(len, groups)) - sum(map(len, large))
    note = "A device has the colour of the block that it holds; neighbouring blocks have near colours."
    note += f" Smaller arrays ({rest}) are in the table of layouts alone." if rest else ""
    pictures = "".join(_picture(report, group) for group in large)
    return paragraph(note) + pictures if large else ""


def _activations(report: PlanReport) -> str:
    lines = [
        (
            each.path,
            render_shape(each.shape),
            each.dtype,
            render_axes(each.axes),
            "; ".join(f"{axis}: from {', decided by '.join(chain)}" for axis, chain in each.origins),
            render_bytes(each.nbytes_per_device),
        )
        for each in report.activations
    ]
    headers = ("path", "shape", "dtype", "layout", "why", "per device")
    return table(headers, lines, numbers=headers[-1:]) if lines else ""


def _rows(report: PlanReport) -> list[Row]:
    """Return all rows but slots."""
    return [row for row in (*report.state.rows, *report.batch.rows) if row.role != "slot"]


def _alike(rows: Iterable[Row]) -> list[list[Row]]:
    """Group rows of one shape, element type, role and layout, those with the most bytes first."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.shape, str(row.dtype), row.role, row.axes), []).append(row)
    return sorted(groups.values(), key=lambda group: -sum(row.nbytes for row in group))


def _picture(report: PlanReport, group: Sequence[Row]) -> str:
    first, *others = group
    picture = picture_of(first, report.state.mesh)
    listed = "".join(f"<li>{escaped(row.path)}</li>" for row in others)
    more = f"<details><summary>and {len(others)} more with this layout</summary><ul>{listed}</ul></details>"
    rules = list(dict.fromkeys(row.rule or "none" for row in group))
    named = ", ".join(rules[:3]) + (f" and {len(rules) - 3} more" if len(rules) > 3 else "")
    text = (
        f"{render_shape(first.shape)} {first.dtype}, {render_axes(first.axes)}, rule: {named}; "
        f"{render_bytes(first.nbytes)}, of which {render_bytes(first.nbytes_per_device)} are on each device"
    )
    return (
        f'<figure class="shards"><h3>{escaped(first.path)}</h3>{paragraph(text)}'
        f"{more if others else ''}{picture.pictures()}</figure>"
    )
