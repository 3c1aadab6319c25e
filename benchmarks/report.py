"""Makes the tables and the charts in docs/reference/benchmarks.md from the JSON of the last runs."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from benchmarks import measure as m
from benchmarks.accelerator import __main__ as accelerator
from keras_dist import visualization

PAGE = m.ROOT / "docs" / "reference" / "benchmarks.md"
PICTURES = m.ROOT / "docs" / "images"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
ORDER = (
    "loop",
    "models",
    "steps",
    "optimizers",
    "resident",
    "keras",
    "dtensor",
    "jobs",
    "data",
    "generate",
    "fine_tuning",
    "memory",
    "scaling",
    "import",
    "start",
    "checkpoint",
    "plan",
    "auto",
)
MEASURED_BEGIN, MEASURED_END = "<!-- accelerators: begin -->", "<!-- accelerators: end -->"
LAYOUTS_BEGIN, LAYOUTS_END = "<!-- layouts: begin -->", "<!-- layouts: end -->"

Record = dict[str, Any]


def read_records(folder: pathlib.Path = m.RESULTS) -> list[Record]:
    """What the benchmarks that have run wrote, in their order."""
    paths = [folder / f"{name}.json" for name in ORDER]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def render_table(records: list[Record]) -> str:
    """What has an aim, as Markdown, and where it was measured."""
    if not records:
        return "Nothing was measured yet."
    lines = ["| compared | ratio | aim | ours | theirs | |", "|---|---|---|---|---|---|"]
    for record in filter(_aimed, records):
        lines.append(f"| **{record['title']}** | | | | | {record['date']} |")
        lines += [_row(result) for result in _aimed(record)]
    places = {_place(record): None for record in records}
    return "\n".join([*lines, "", "Measured on " + "; ".join(places) + "."])


def render_layouts(records: list[Record]) -> str:
    """What layouts of models cost, as Markdown: for each the least time of a step; the least of a row is bold."""
    rows = [row for record in records for row in record.get("layouts", ())]
    names = list(dict.fromkeys(name for row in rows for name in row["costs"]))
    lines = [f"| model | target | {' | '.join(names)} | search |", f"|---|---|{'---|' * len(names)}---|"]
    for row in rows:
        costs = [row["costs"].get(name) for name in names]
        known = [
            each["serial_step_seconds"] for each in costs if each and "error" not in each and each["fits"] is not False
        ]
        cells = [_cost(each, min(known, default=0)) for each in costs]
        found = _search(row["costs"].get("AutoParallel", {}))
        lines.append(f"| {row['model']} | {row['target']} | {' | '.join(cells)} | {found} |")
    return "\n".join(lines) if rows else "Nothing was planned yet."


def render_accelerators(folder: pathlib.Path = m.RESULTS / "accelerator") -> str:
    """What `make accelerator` has measured, as Markdown: a table for each file, what failed included."""
    tables = []
    for path in sorted(folder.glob("*.jsonl")):
        where, *results = map(json.loads, filter(_is_whole, path.read_text().splitlines()))
        driver = f", driver {where['driver']}" if where["driver"] else ""
        versions = f"jax {where['jax']}, jaxlib {where['jaxlib']}, Python {where['python']}{driver}, {where['date']}"
        rows = [f"| {line['section']} | {accelerator.text(line).replace('|', '/')} |" for line in results]
        tables.append(
            "\n".join([f"{where['devices']} x {where['kind']}: {versions}.", "", "| section | |", "|---|---|", *rows])
        )
    return "\n\n".join(tables) if tables else "Not run on a GPU or TPU yet."


def _is_whole(line: str) -> bool:
    """Whether a line was written to its end before a run was cut off."""
    return line.endswith("}")


def _search(cost: Record) -> str:
    """Candidates, how many of them were compiled and were to be compiled, and seconds."""
    if "candidates" not in cost:
        return ""
    compiled, left = cost["compiled"], cost["not_compiled"]
    of = f"{compiled} of {compiled + left}" if left else f"{compiled}"
    return f"{cost['candidates']} candidates, {of} compiled, {cost['seconds_to_find']:.0f} s"


def _cost(cost: Record | None, least: float) -> str:
    """Least milliseconds of a step, GB that a device exchanges, and GB that it holds."""
    if cost is None:
        return ""
    if "error" in cost:
        return cost["error"].partition(":")[0]
    seconds = cost["serial_step_seconds"]
    numbers = [f"{1e3 * seconds:.3g} ms", *(f"{cost[name] / 1e9:.2g} GB" for name in ("moved_nbytes", "device_nbytes"))]
    if seconds <= 1.005 * least and cost["fits"] is not False:
        numbers[0] = f"**{numbers[0]}**"
    note = "" if cost["tier"] == "compiled" else " (propagated)"
    return ", ".join(numbers) + ("; does not fit" if cost["fits"] is False else note)


def with_table(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """The text with the table between its two markers."""
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{begin}\n{table}\n{end}", text)
    if count != 1:
        raise ValueError(f"expected the markers {begin} and {end} once, and found them {count} times")
    return replaced


def with_tables(text: str, records: list[Record]) -> str:
    """The text with all tables."""
    text = with_table(text, render_table(records))
    text = with_table(text, render_layouts(records), LAYOUTS_BEGIN, LAYOUTS_END)
    return with_table(text, render_accelerators(), MEASURED_BEGIN, MEASURED_END)


def draw(records: list[Record], folder: pathlib.Path = PICTURES) -> None:
    """Draw a bar for each ratio that has an aim, which a line marks; light and dark."""
    bars = {
        f"{record['title']}: {result['name']}".replace("`", ""): result
        for record in records
        for result in _aimed(record)
    }
    ratios, aims = ({name: round(each[key], 2) for name, each in bars.items()} for key in ("ratio", "aim"))
    picture = visualization.plot_bars(ratios, "ratio to what it is compared with; the line is the aim", aims=aims)
    for theme in ("light", "dark"):
        picture.save(folder / f"benchmarks_{theme}.svg", theme)


def _aimed(record: Record) -> list[dict[str, Any]]:
    return [result for result in record["results"] if result["aim"] is not None]


def _row(result: dict[str, Any]) -> str:
    ours, theirs = (m.number(result[who]) for who in ("ours", "theirs"))
    mark = "reached" if result["ratio"] <= result["aim"] else "not reached"
    name, ratio, aim = result["name"], f"{result['ratio']:.2f}", f"{result['aim']:g}"
    return f"| {name} | {ratio} | {aim} | {ours} | {theirs} {result['unit']} | {mark} |"


def _place(record: Record) -> str:
    where, versions = record["machine"], record["versions"]
    return (
        f"{where['cores']} cores of {where['processor']}, "
        f"Python {versions['python']}, jax {versions['jax']}, Keras {versions['keras']}, {record['date']}"
    )


def main() -> None:
    """Write the tables and the charts."""
    records = read_records()
    PAGE.write_text(with_tables(PAGE.read_text(), records))
    draw(records)


if __name__ == "__main__":
    main()
