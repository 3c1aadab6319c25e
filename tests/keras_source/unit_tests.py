"""Runs Keras's own unit tests on keras_dist: `python -m tests.keras_source.unit_tests --source KERAS`."""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from tests.keras_source.rewriting import CAUSES, Module, classify, rewrite

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = (
    "activations",
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "callbacks",
    "models",
    "trainers",
    "saving",
    "random",
    "distribution",
    "initializers",
    "regularizers",
    "constraints",
)
TESTS = "tests_of_keras"  # not at the top: `random` is a module of Python
OUTCOMES = ("passed", "skipped", *CAUSES)


def all_tests(source: pathlib.Path) -> list[str]:
    """Return the files of tests in a checkout of Keras, below `keras/src`."""
    root = source / "keras" / "src"
    return sorted(file.relative_to(root).as_posix() for file in root.rglob("*_test.py"))


def chosen(names: list[str], package: str) -> list[str]:
    """Return the files that a folder or a file stands for."""
    return [name for name in names if name == package or name.startswith(f"{package.rstrip('/')}/")]


def rewrite_into(folder: pathlib.Path, source: pathlib.Path) -> list[str]:
    """Write all tests of Keras into a folder, rewritten, and return their names in it."""
    names = all_tests(source)
    for name in names:
        place = folder / TESTS / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(rewrite((source / "keras" / "src" / name).read_text("utf-8")), "utf-8")
    for data in (source / "keras" / "src").rglob("test_data"):
        shutil.copytree(data, folder / TESTS / data.relative_to(source / "keras" / "src"), dirs_exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\npython_files = *_test.py\n")
    return names


def environment_of(
    folder: pathlib.Path, source: pathlib.Path, results: pathlib.Path, seconds: int, borrowed: str = ""
) -> dict[str, str]:
    """Return the environment of a process that runs tests: the plugin's, and programs that compile fast."""
    return {
        **os.environ,
        "TRIAL_REWRITTEN": str(folder / TESTS),
        "TRIAL_RESULTS": str(results),
        "TRIAL_SOURCE": str(source),
        "TRIAL_SECONDS": str(seconds),
        "TRIAL_BORROWED": borrowed,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "keras_source"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
    }


def arguments_of(folder: pathlib.Path) -> list[str]:
    """Return the arguments of pytest in front of its files."""
    arguments = ["-q", "--continue-on-collection-errors", "-p", "tests.keras_source.plugin", "-p", "no:cacheprovider"]
    arguments += ["--import-mode=importlib", "-W", "ignore", "--no-header", "--tb=short"]
    return [*arguments, "-c", str(folder / "pytest.ini"), "--rootdir", str(folder)]


def last_lines(results: pathlib.Path) -> dict[str, Any]:
    """Return the last line about each test."""
    found: dict[str, Any] = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        entry = json.loads(line)
        entry["id"] = entry["id"].removeprefix(f"{TESTS}/")
        found[entry["id"]] = entry
    return found


def run(folder: pathlib.Path, source: pathlib.Path, names: list[str], seconds: int, borrowed: str) -> dict[str, Any]:
    """Run tests in one process, and what is left in another one where it ended early.

    Returns:
        The last line about each test.
    """
    results = folder / "results.jsonl"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    results.unlink(missing_ok=True)
    environment = environment_of(folder, source, results, seconds, borrowed)
    if any("distribution" in name or name.startswith(("backend", "initializers")) for name in names):
        environment["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
    found: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        command = [sys.executable, "-m", "pytest", *arguments_of(folder)]
        command += [f"--deselect={TESTS}/{name}" for name in found if name.partition("::")[0] == waiting[0]]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, *(str(folder / TESTS / name) for name in waiting)],
                cwd=elsewhere,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(240 + 120 * len(waiting))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        found |= last_lines(results)
        ended = process.returncode in (0, 1, 2, 5)
        broken = [entry for entry in found.values() if entry["outcome"] == "began"]
        for entry in broken:
            entry.update(outcome="failed", error=f"the process ended: {process.returncode}", seconds=0)
            with results.open("a") as lines:  # it is read again
                lines.write(json.dumps(entry) + "\n")
        if ended and not broken:
            break
        file = broken[-1]["id"].partition("::")[0] if broken else waiting[0]
        waiting = waiting[waiting.index(file) :] if file in waiting and broken else waiting[1:]
    return found


def judged(found: dict[str, Any], source: pathlib.Path) -> list[dict[str, Any]]:
    """Return a record for each test: package, id, outcome, last line of its error."""
    records = []
    modules: dict[str, Module] = {}
    for identifier, entry in found.items():
        file, _, name = identifier.partition("::")
        path = source / "keras" / "src" / file
        if not path.is_file():
            continue
        tests = modules.setdefault(file, Module(path.read_text("utf-8")))
        outcome, count, error = entry["outcome"], 1, entry.get("error", "")
        if outcome == "not collected":
            if "Skipped" in error and name == "":
                outcome = "skipped"
            count = tests.count()
        if outcome not in ("passed", "skipped"):
            outcome = classify(file, name, error, tests)
        records.append(
            {
                "package": file.partition("/")[0],
                "id": identifier,
                "outcome": outcome,
                "count": count,
                "error": last_line(error),
                "text": error,
                "seconds": entry.get("seconds", 0),
            }
        )
    return records


def last_line(error: str) -> str:
    """Return the line of a failure that tells most: the last one of the last error."""
    lines = [
        line[1:].strip() for line in error.splitlines() if re.match(r"E\s+\w[\w.]*(Error|Warning|Exception)", line)
    ]
    lines = lines or [line for line in error.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def table(records: list[dict[str, Any]]) -> str:
    """Return counts for each package."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        for package in (record["package"], "all"):
            counts[package][record["outcome"]] += record["count"]
    lines = [f"{'package':<14}" + "".join(f"{name:>13}" for name in OUTCOMES) + f"{'of what counts':>16}"]
    for package in sorted(counts, key=lambda name: (name == "all", name)):
        row = counts[package]
        share = row["passed"] / max(row["passed"] + row["failed"], 1)
        lines.append(f"{package:<14}" + "".join(f"{row[name]:>13}" for name in OUTCOMES) + f"{share:>15.1%} ")
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for, print a table and write the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True, help="a checkout of Keras 3.15")
    parser.add_argument("--only", nargs="*", default=PACKAGES, help="folders or files below keras/src")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("failures.json"))
    parser.add_argument("--seconds", type=int, default=60, help="for one test")
    parser.add_argument(
        "--borrowed", default="", help="namespaces taken from the installed Keras where they are absent"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.only if not chosen(all_tests(given.source), name)]:
        parser.error(f"no tests of Keras: {', '.join(unknown)}. Names are folders and files below keras/src")
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        names = rewrite_into(folder, given.source)
        for package in given.only:
            some = chosen(names, package)
            records += judged(run(folder, given.source.resolve(), some, given.seconds, given.borrowed), given.source)
            given.to.write_text(json.dumps(records, indent=1))
            print(table(records), flush=True)


if __name__ == "__main__":
    main()
