"""Honest numbers on a noisy machine: everything that is compared takes turns, and medians of ratios are reported.

Imports neither JAX nor Keras: processes in other environments use it, too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("keras_dist", "jax", "flax", "optax", "numpy", "keras")
WARMUP = 2
CLOCKS = {"wall": "", "cpu": "main thread", "all_cpu": "all threads"}
"""Fields of `Samples`, as lines of benchmarks name them."""


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

    def timed(name: str) -> None:
        wall, cpu, all_cpu = time.perf_counter(), time.thread_time(), time.process_time()
        runs[name]()
        samples[name].all_cpu.append(time.process_time() - all_cpu)
        samples[name].cpu.append(time.thread_time() - cpu)
        samples[name].wall.append(time.perf_counter() - wall)

    take_turns({name: functools.partial(timed, name) for name in runs}, rounds)
    return samples


def take_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Run everything in turns, and back again; what each returned, a value a round."""
    results: dict[str, list[Any]] = {name: [] for name in runs}
    for index in range(rounds):
        for name in list(runs)[:: -1 if index % 2 else 1]:
            results[name].append(runs[name]())
    return results


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


def compare(
    samples: Mapping[str, Samples], ours: str, theirs: str, what: str, where: str = "", **figures: Any
) -> list[dict[str, Any]]:
    """Lines of a benchmark by clock, such as `wall=1.1, cpu=None`, each with its aim.

    Args:
        samples: of what `interleave` has run.
        ours: name of what is of keras_dist.
        theirs: name of what it is compared with.
        what: was compared.
        where: it was.
        **figures: `unit` and `per` of `result`, and the aim of each clock.
    """
    unit, per = figures.pop("unit"), figures.pop("per", 1)
    return [
        result(
            ", ".join(filter(None, (what, CLOCKS[clock], where))),
            *(getattr(samples[who], clock) for who in (ours, theirs)),
            unit,
            per,
            aim,
        )
        for clock, aim in figures.items()
    ]


def as_installed() -> dict[str, str]:
    """The environment of a program whose packages are installed: with bytecode, which the first run writes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def in_process(module: str, *, python: pathlib.Path | str = sys.executable, **arguments: Any) -> Any:
    """What `measure(**arguments)` of a module returns in a process of its own, with devices of its own."""
    return _last_line(measuring(module, python=python, **arguments))


def measuring(module: str, *, python: pathlib.Path | str = sys.executable, **arguments: Any) -> list[str]:
    """The command that prints what `measure(**arguments)` of a module returns, run by that interpreter."""
    code = f"import json, sys, {module} as m; print(json.dumps(m.measure(**json.loads(sys.argv[1]))))"
    return [str(python), "-c", code, json.dumps(arguments)]


def in_script(python: pathlib.Path | str, script: pathlib.Path, *arguments: str) -> Any:
    """What a script prints as JSON on its last line, run by that interpreter."""
    return _last_line([str(python), str(script), *arguments])


def in_job(command: Sequence[str], processes: int) -> list[Any]:
    """What the processes of a job print as JSON on their last lines; where one fails, the others are ended.

    `TF_CONFIG` tells each its place in a job on this machine. They divide the cores evenly, so that each starts as many
    threads for computations as it has cores, whatever library it uses.
    """
    with contextlib.ExitStack() as ends:
        files = [[ends.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)] for _ in range(processes)]
        running: list[subprocess.Popen[str]] = []
        for index, (place, (output, errors)) in enumerate(zip(places_in_job(processes), files, strict=True)):
            env = os.environ | {"TF_CONFIG": place}
            with _some_cores(index, processes):
                started = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=errors, text=True)
            running.append(ends.enter_context(started))
            ends.callback(started.kill)
        while None in (codes := [each.poll() for each in running]) and not any(codes):
            time.sleep(0.1)
        told: list[Any] = []
        for code, (output, errors) in zip(codes, files, strict=True):
            if code is not None:  # else another has failed
                output.seek(0)
                errors.seek(0)
                told.append(_told(command, code, output.read(), errors.read()))
        return told


def places_in_job(processes: int) -> list[str]:
    """`TF_CONFIG` of each process of a job on this machine."""
    with contextlib.ExitStack() as probes:
        bound = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(processes)]
        cluster = {"worker": [f"127.0.0.1:{probe.getsockname()[1]}" for probe in bound]}
    tasks = ({"type": "worker", "index": index} for index in range(processes))
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


@contextlib.contextmanager
def _some_cores(index: int, parts: int) -> Iterator[None]:
    """Give a part of the cores to processes that are started meanwhile, where the system can (Linux)."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[index::parts] or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _last_line(command: list[str]) -> Any:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return _told(command, done.returncode, done.stdout, done.stderr)


def _told(command: Sequence[str], code: int, output: str, errors: str) -> Any:
    """What a program has printed as JSON on its last line."""
    if code:
        raise RuntimeError(f"{command} ended with {code}:\n{errors[-3000:]}")
    return json.loads(output.strip().splitlines()[-1])


def main(
    name: str, title: str, run: Callable[[bool], list[dict[str, Any]]], description: str | None, *, writes: bool = True
) -> None:
    """Report `run(quick)`: `--quick` takes fewer rounds, for a look at the script and not at the numbers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds only; nothing is written")
    quick = parser.parse_args().quick
    report(name, title, run(quick), quick or not writes)


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
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
