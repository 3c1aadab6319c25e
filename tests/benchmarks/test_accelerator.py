"""`make accelerator` in its small form: every section has results here, so that its programs run on accelerators."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest

import keras_dist as kd
from benchmarks import report
from benchmarks.accelerator import __main__ as accelerator
from benchmarks.accelerator import training
from benchmarks.accelerator.sections import SECTIONS, Sizes
from benchmarks.measure import ROOT


def accelerate(*arguments):
    command = [sys.executable, "-m", "benchmarks.accelerator", *map(str, arguments)]
    environment = os.environ | {"XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=2")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_every_section_has_results(tmp_path):
    done = accelerate("--folder", tmp_path)
    (path,) = tmp_path.glob("2-cpu-*.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr + path.read_text()
    where, *results = map(json.loads, path.read_text().splitlines())
    assert (
        where["sizes"] == "small"
        and where["kind"] == "cpu"
        and where["devices"] == 2
        and where["jax"]
        and where["date"]
    )
    assert {line["section"] for line in results if "error" not in line} == set(SECTIONS)
    assert {line["section"] for line in results if "error" in line} == {"limit"}, "host memory has no limit"
    found = {(line["section"], line["name"]): line for line in results}
    assert found["demo", "accuracy"]["value"] > 0.95
    assert found["tests", "tests that pass"]["value"] == found["tests", "tests that pass"]["beside"]["of"] > 10
    assert found["two", "two trainings at once: losses are apart by"]["value"] < 1e-6
    assert found["two", "a job of two processes: losses are apart by"]["value"] == 0
    for case in ("causal", "segments", "window", "cap"):
        for what in ("forward", "gradient"):
            name = f"{case}, {what}: largest difference, of the largest number"
            assert found["attention", name]["value"] < 2**-6, "of bfloat16"
    for mode in ("full", "remat", "lora", "qlora", "muon", "host"):
        assert found[mode, "speed"]["value"] > 0 and found[mode, "step"]["beside"]["at least by the plan"] > 0
        assert found[mode, "peak of memory"]["beside"]["of the program"] > 0
        assert b"ENTRY" in gzip.decompress((tmp_path / f"{mode}.hlo.gz").read_bytes())
    assert kd.planner.Calibration.load(tmp_path / "calibration_cpu.json").chip == "cpu"
    assert not (tmp_path / "temporary").exists() and len(list(tmp_path.glob("*.log"))) == len(SECTIONS)
    assert done.stdout.count("the section took") == len(SECTIONS)


@pytest.mark.multiprocess
def test_a_dry_run_says_what_and_how_long():
    done = accelerate("--dry-run")
    *lines, last = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(SECTIONS)
    assert last.startswith(f"at most {accelerator.SECONDS} s in all") and accelerator.SECONDS <= 9 * 60


@pytest.mark.multiprocess
def test_a_section_that_takes_too_long_ends_alone(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text("{}\n")
    began = time.monotonic()
    assert not accelerator.run("demo", path, "small", began + 1.5)
    assert not accelerator.run("demo", path, "small", began)  # after the end
    first, second = (json.loads(line) for line in path.read_text().splitlines()[1:])
    assert first["error"].startswith("not finished in 1 s") and second["error"].startswith("not finished in 0 s")
    assert "demo: the section: not finished in 1 s" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_a_section_that_fails_says_why(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text("{}\n")
    assert not accelerator.run("full", path, "smal", time.monotonic() + 60)
    error = json.loads(path.read_text().splitlines()[-1])["error"]
    assert error.startswith("ended with 1") and "KeyError: 'smal'" in Path(error.partition(": ")[2]).read_text()
    assert "full: the section: ended with 1" in capsys.readouterr().out


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_run_that_is_ended_ends_its_section(tmp_path):
    command = [sys.executable, "-m", "benchmarks.accelerator", "--sections", "full", "--folder", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert "small sizes" in process.stdout.readline()
        while not (found := sections_in(tmp_path)):
            time.sleep(0.1)
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not sections_in(tmp_path), found


def sections_in(folder):
    commands = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
    return [one for one in commands if "benchmarks.accelerator.sections" in one and str(folder) in " ".join(one)]


@pytest.mark.parametrize(("most", "expected"), [(40, [(32, "True", "yes"), (48, "False", "Memory")]), (0, [])])
def test_the_largest_batch_that_fits_is_trained_and_more_is_not(monkeypatch, most, expected):
    class Model:
        def plan(self, x, y, target, compiles, timeout_seconds):
            assert compiles == (x.shape[0] == 48)
            return types.SimpleNamespace(fits=x.shape[0] <= most)

        def fit(self, x, y, batch_size, verbose):
            assert x.shape == y.shape == (2 * batch_size, 3)
            if batch_size > most:
                raise MemoryError("out of memory")

    monkeypatch.setattr(training, "machine", lambda: types.SimpleNamespace(hbm_nbytes=1))
    monkeypatch.setattr(training, "_trained", lambda sizes, remat: Model())
    found = list(training.limit(Sizes(rows=8, length=3, vocabulary=5)))
    if not expected:
        assert "does not say that they fit" in found.pop()["error"]
    assert [line["value"] for line in found] == [rows for rows, *_ in expected]
    for line, (_, fits, trains) in zip(found, expected, strict=True):
        assert line["beside"]["fits by the plan"] == fits and line["beside"]["trains"].startswith(trains)


def test_results_become_a_table(tmp_path):
    assert report.render_accelerators(tmp_path) == "Not run on a GPU or TPU yet."
    where = {"devices": 1, "kind": "an abacus", "driver": "1.2", "jax": "0.10.2", "jaxlib": "0.10.2", "python": "3.11"}
    lines = [
        where | {"date": "2026-01-02"},
        {"section": "full", "name": "MFU", "value": 0.41234, "unit": "", "beside": {}},
        {"section": "full", "name": "step", "value": 300.0, "unit": "ms", "beside": {"at least by the plan": 200.0}},
        {"section": "limit", "name": "the section", "error": "not finished | in 60 s"},
    ]
    cut_off = '{"section": "generate", "na'
    (tmp_path / "abacus.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + cut_off)
    table = report.render_accelerators(tmp_path)
    assert table.splitlines()[0] == "1 x an abacus: jax 0.10.2, jaxlib 0.10.2, Python 3.11, driver 1.2, 2026-01-02."
    assert "| full | MFU: 0.4123 |" in table and "| full | step: 300 ms; at least by the plan 200 |" in table
    assert "| limit | the section: not finished / in 60 s |" in table
