"""Recorded memory of the models of `memory_bank`, by the estimate and by XLA, and the page that lists it.

`python -m tests.planner.memory_records v5e:2x4 MLP/fsdp` compiles cases and records them, without names all; TPUs need
the extra `tpu`, and minutes for each case. Without arguments it writes the tables of the page again.
"""

import dataclasses
import json
import pathlib
import statistics
import sys

FILE = pathlib.Path(__file__).with_suffix(".json")
PAGE = pathlib.Path(__file__).parents[2] / "docs/concepts/memory_estimates.md"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Bytes of a device: state and batch, and intermediate results by the estimate, at most, and by XLA."""

    name: str
    layout: str
    rows: int
    state: int
    estimate: int
    least: int
    most: int
    compiled: int

    @property
    def ratios(self) -> tuple[float, float]:
        """The bounds of the peak, divided by XLA's peak."""
        peak = self.state + self.compiled
        return (self.state + self.least) / peak, (self.state + self.most) / peak


def recorded() -> dict[str, list[Comparison]]:
    """Return the recorded comparisons by target."""
    return {target: [Comparison(**each) for each in cases] for target, cases in json.loads(FILE.read_text()).items()}


def record(target: str, found: list[Comparison]) -> None:
    """Add comparisons to the file, or replace them in it."""
    cases = recorded()
    known = {(each.name, each.layout): each for each in [*cases.get(target, []), *found]}
    cases[target] = sorted(known.values(), key=lambda each: (each.name.lower(), each.layout))
    lines = {name: [json.dumps(dataclasses.asdict(each)) for each in those] for name, those in cases.items()}
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(those) + "\n]" for name, those in lines.items())
    FILE.write_text("{\n" + text + "\n}\n")


def summary(cases: list[Comparison]) -> str:
    """Return a sentence on the bounds."""
    inside = sum(least <= 1 <= most for least, most in (each.ratios for each in cases))
    least, most = (statistics.median(each.ratios[end] for each in cases) for end in (0, 1))
    largest = max(each.ratios[1] for each in cases)
    medians = f"in the median the bounds are {least:.2f} and {most:.2f} of it, and the largest is {largest:.1f} of it"
    return f"{inside} of {len(cases)} peaks are within the bounds; {medians}."


def page() -> str:
    """Return the text of the page: its prose, and the tables of what is recorded."""
    known = sorted(recorded().items(), reverse=True)
    parts = [PAGE.read_text().partition(f"\n\n## {_TITLES[known[0][0]]}")[0]]
    for target, cases in known:
        lines = [f"## {_TITLES[target]}", "", summary(cases), "", _COLUMNS, "|---|---|---:|---:|---:|---:|---:|---:|"]
        for each in cases:
            figures = each.state, each.estimate, each.least, each.most, each.compiled
            sizes = " | ".join(f"{size / 2**20:,.0f}" for size in figures)
            lines.append(f"| {each.name} | {each.layout} | {each.rows:,} | {sizes} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


_TITLES = {"v5e:2x4": "TPU v5e, 8 devices", "cpu:8": "8 CPU devices"}
_COLUMNS = "| model | layout | rows | state and batch | estimate | least | most | compiled |"


if __name__ == "__main__":
    import keras_dist as kd

    kd.use_cpu_devices(8)
    from tests.planner import memory_bank

    if len(sys.argv) > 1:
        cases = [(name, layout) for name, case in memory_bank.BANK.items() for layout in case.layouts]
        for name, layout in cases:
            if len(sys.argv) == 2 or f"{name}/{layout}" in sys.argv[2:]:
                record(sys.argv[1], [memory_bank.compared(name, layout, sys.argv[1])])
    PAGE.write_text(page())
