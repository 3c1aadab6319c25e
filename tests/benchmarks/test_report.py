"""What the benchmarks found, as docs/reference/benchmarks.md shows it. Nothing is timed here."""

import json

from benchmarks import measure, report
from benchmarks.measure import number

MACHINE = {"processor": "an abacus", "cores": 2, "load": 0.1, "system": "wood"}
VERSIONS = {"python": "3.11", "jax": "0.10.2", "keras": "3.15.1"}


def record(title, *ratios_and_aims):
    results = [
        {"name": f"case {ratio}", "ours": 12.0, "theirs": 10.0, "unit": "ms", "ratio": ratio, "aim": aim}
        for ratio, aim in ratios_and_aims
    ]
    return {"title": title, "date": "2026-01-02", "machine": MACHINE, "versions": VERSIONS, "results": results}


def test_table_tells_what_has_an_aim_and_where_it_was_measured():
    table = report.render_table([record("speed", (0.5, 0.6), (0.7, 0.6), (9.0, None)), record("size", (1.0, 1.0))])
    assert "| case 0.5 | 0.50 | 0.6 | 12 | 10 ms | reached |" in table
    assert "| case 0.7 | 0.70 | 0.6 | 12 | 10 ms | not reached |" in table
    assert "| case 1.0 | 1.00 | 1 | 12 | 10 ms | reached |" in table
    assert "case 9.0" not in table
    assert table.count("an abacus") == 1  # one machine, told once


def test_table_goes_between_the_markers():
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter"
    assert report.with_table(text, "new") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter"


def test_records_come_in_the_order_of_the_report(tmp_path):
    for name in ("keras", "memory", "loop"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"title": name}))
    assert [found["title"] for found in report.read_records(tmp_path)] == ["loop", "keras", "memory"]


def test_the_page_has_the_table_of_the_last_runs():
    text = report.PAGE.read_text()
    assert report.with_table(text, report.render_table(report.read_records())) == text


def test_every_benchmark_is_in_the_report():
    scripts = {path.stem.removeprefix("bench_") for path in (measure.ROOT / "benchmarks").glob("bench_*.py")}
    assert scripts == set(report.ORDER)


def test_ratio_is_the_median_of_the_rounds_ratios():
    line = measure.result("name", ours=[1.0, 8.0, 3.0], theirs=[2.0, 4.0, 3.0], unit="s", aim=1.0)
    assert (line["ours"], line["theirs"], line["ratio"]) == (3.0, 3.0, 1.0)


def test_runs_take_turns_and_come_back():
    order = []
    samples = measure.interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, warmup=1)
    assert "".join(order) == "ababba"
    assert {len(taken.wall) for taken in samples.values()} == {2}


def test_numbers_have_no_exponents():
    assert [number(value) for value in (0.0123, 1.23456, 999.6, 12345.6)] == ["0.0123", "1.23", "1000", "12346"]
