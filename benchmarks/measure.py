"""Honest numbers on a noisy machine: everything that is compared takes turns, and medians of ratios are reported.

Imports neither JAX nor Keras: processes in other environments use it, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("keras_dist", "jax", "flax", "optax", "numpy", "keras")
WARMUP = 2


@dataclasses.dataclass
class Samples:
    """What runs of one thing took, a number a round.

    Attributes:
        wall: seconds.
        cpu: seconds of the main thread's own work.
        all_cpu: seconds of work of all threads: where others use the machine, too, it tells more than `wall`.
    """

    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    all_cpu: list[float] = dataclasses.field(default_factory=list)


def interleave(runs: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = WARMUP) -> dict[str, Samples]:
    """Run everything in turns, and back again, so that what disturbs the machine disturbs all alike."""
    for _ in range(warmup):
        for run in runs.values():
            run()
    samples = {name: Samples() for name in runs}
    for index in range(rounds):
        for name in list(runs)[:: -1 if index % 2 else 1]:
            wall, cpu, all_cpu = time.perf_counter(), time.thread_time(), time.process_time()
            runs[name]()
            samples[name].all_cpu.append(time.process_time() - all_cpu)
            samples[name].cpu.append(time.thread_time() - cpu)
            samples[name].wall.append(time.perf_counter() - wall)
    return samples


def result(
    name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, per: float = 1, aim: float | None = None
) -> dict[str, Any]:
    """One line of a benchmark.

    Args:
        name: what was compared.
        ours: a number a round, of keras_dist.
        theirs: those of what it is compared with, from the same rounds.
        unit: of the numbers, once they are divided by `per`.
        per: how many of what `unit` is about there are in a round.
        aim: the ratio of the two should be at most this; None to tell it only.
    """
    return {
        "name": name,
        "ours": statistics.median(ours) / per,
        "theirs": statistics.median(theirs) / per,
        "unit": unit,
        "ratio": statistics.median(our / their for our, their in zip(ours, theirs, strict=True)),
        "aim": aim,
        "rounds": len(ours),
    }


def as_installed() -> dict[str, str]:
    """The environment of a program whose packages are installed: with bytecode, which the first run writes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def in_process(module: str, **arguments: Any) -> Any:
    """What `measure(**arguments)` of a module returns in a process of its own, with devices of its own."""
    code = f"import json, sys, {module} as m; print(json.dumps(m.measure(**json.loads(sys.argv[1]))))"
    return _last_line([sys.executable, "-c", code, json.dumps(arguments)])


def in_script(python: pathlib.Path | str, script: pathlib.Path, *arguments: str) -> Any:
    """What a script prints as JSON on its last line, run by that interpreter."""
    return _last_line([str(python), str(script), *arguments])


def _last_line(command: list[str]) -> Any:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def is_quick(description: str | None) -> bool:
    """Whether `--quick` was given: fewer rounds, for a look at the script and not at the numbers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds only; nothing is written")
    return parser.parse_args().quick


def report(name: str, title: str, results: list[dict[str, Any]], quick: bool = False) -> None:
    """Print the results as a table, and write them to `results/<name>.json` unless this was a quick look."""
    print(f"\n{title}")
    width = max(len(result["name"]) for result in results)
    for line in results:
        numbers = f"{number(line['ours'])} / {number(line['theirs'])} {line['unit']}"
        print(f"  {line['name']:<{width}}  {line['ratio']:6.2f}  {verdict(line):<16}  {numbers}")
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        record = {"title": title, "date": f"{datetime.date.today()}", **machine(), "results": results}
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def verdict(line: Mapping[str, Any]) -> str:
    """Whether the aim was reached."""
    if line["aim"] is None:
        return ""
    return f"{'reached' if line['ratio'] <= line['aim'] else 'not'} (<= {line['aim']:g})"


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "system": platform.platform(terse=True),
        },
        "versions": {"python": platform.python_version(), **versions},
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def number(value: float) -> str:
    """With three digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
