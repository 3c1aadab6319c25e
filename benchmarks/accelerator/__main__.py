"""All sections within nine minutes; each result is on disk as soon as it is known."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any

from benchmarks.accelerator.sections import SECTIONS, failed, result
from benchmarks.measure import ROOT

SECONDS = 540
DEVICES = """import json, sys, jax, jaxlib
first = jax.devices()[0]
about = {"kind": first.device_kind, "devices": jax.device_count(), "runtime": first.client.platform_version}
print(json.dumps({**about, "jax": jax.__version__, "jaxlib": jaxlib.__version__, "python": sys.version.split()[0]}))"""


def main() -> int:
    """Run the sections; 1 if one of them failed or was cut off."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small sizes, to try the programs on CPUs")
    parser.add_argument("--dry-run", action="store_true", help="say what runs, and how long it may take")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=[*SECTIONS], metavar="NAME")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "accelerator", help="of the results")
    options = parser.parse_args()
    if options.dry_run:
        for name in options.sections:
            print(f"{name:<10} at most {SECTIONS[name].seconds:>3} s: {SECTIONS[name].what}")
        print(f"at most {min(SECONDS, sum(SECTIONS[name].seconds for name in options.sections))} s in all")
        return 0
    where = {**machine(), "sizes": "small" if options.small else "full"}
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{re.sub('[^a-z0-9]+', '-', where['kind'].lower())}.jsonl"
    path.write_text(f"{json.dumps(where)}\n")
    print(f"{where['devices']} x {where['kind']}, jax {where['jax']}, at most {SECONDS} s; results: {path}", flush=True)
    end = time.monotonic() + SECONDS * (2 if options.small else 1)
    ended = [run(name, path, where["sizes"], end) for name in options.sections]
    print("Copy the file to benchmarks/results/accelerator, and `python -m benchmarks.report` adds it to the tables.")
    return 0 if all(ended) else 1


def machine() -> dict[str, Any]:
    """What is here, from a process that has ended: one that asks takes the memory of GPUs."""
    done = subprocess.run([sys.executable, "-c", DEVICES], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"JAX finds no devices: {done.stderr.strip()[-500:]}")
    driver = None
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    return {**json.loads(done.stdout.splitlines()[-1]), "driver": driver, "date": f"{datetime.date.today()}"}


def run(name: str, path: pathlib.Path, sizes: str, end: float) -> bool:
    """Run a section in a process, which is killed with its children when its time is over, and print its results."""
    began, before, error = time.monotonic(), path.stat().st_size, ""
    seconds = min(SECTIONS[name].seconds if sizes == "full" else SECONDS, end - began)
    command = [sys.executable, "-m", "benchmarks.accelerator.sections", name, str(path.absolute()), sizes]
    options: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            errors = process.communicate(timeout=max(seconds, 0))[1].strip()
            error = f"ended with {process.returncode}: {errors[-300:]}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            error = f"not finished in {max(seconds, 0):.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    last = failed("the section", error) if error else result("the section took", time.monotonic() - began, "s")
    with path.open("a+") as file:
        file.write(f"{json.dumps({'section': name, **last})}\n")
        file.seek(before)
        print("".join(f"  {name}: {text(json.loads(line))}\n" for line in file), end="", flush=True)
    return not error


def text(line: dict[str, Any]) -> str:
    """A result in a line, without its section."""
    if "error" in line:
        return f"{line['name']}: {line['error']}"
    value = "not known" if line["value"] is None else f"{line['value']:.4g} {line['unit']}".strip()
    known = ((name, each if isinstance(each, str) else f"{each:.4g}") for name, each in line["beside"].items())
    return "; ".join([f"{line['name']}: {value}", *(f"{name} {each}" for name, each in known)])


if __name__ == "__main__":
    sys.exit(main())
