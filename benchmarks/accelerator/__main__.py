"""All sections within nine minutes; each result is on disk as soon as it is known. On CPUs in small sizes."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from benchmarks.accelerator.sections import SECTIONS, failed, result
from benchmarks.measure import ROOT

SECONDS = 540
DEVICES = """import json, sys, jax, jaxlib
one, packages = jax.devices()[0], {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "python": sys.version[:6]}
about = {"platform": one.platform, "kind": one.device_kind, "runtime": one.client.platform_version}
print(json.dumps({**about, "devices": jax.device_count(), **packages}))"""


def main() -> int:
    """Run the sections; 1 if one of them failed or was cut off."""
    end = time.monotonic() + SECONDS
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="say what runs, and how long it may take")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=[*SECTIONS], metavar="NAME")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "accelerator", help="of the results")
    options = parser.parse_args()
    if options.dry_run:
        for name in options.sections:
            print(f"{name:<10} at most {SECTIONS[name].seconds:>3} s: {SECTIONS[name].what}")
        print(f"at most {SECONDS} s in all: what comes later is left out. Small sizes on CPUs, in twice the time")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: sys.exit(128 + number))
    where = machine()
    sizes = "small" if where["platform"] == "cpu" else "full"
    kind = re.sub("[^a-z0-9]+", "-", f"{where['devices']} {where['kind']}".lower())
    path = options.folder / f"{kind}-{datetime.datetime.now():%Y%m%d-%H%M%S}.jsonl"
    path.write_text(f"{json.dumps({**where, 'sizes': sizes})}\n")
    print(f"{where['devices']} x {where['kind']}, jax {where['jax']}, {sizes} sizes; results: {path}", flush=True)
    platforms = {"gpu": "rocm,cpu" if "rocm" in where["runtime"].lower() else "cuda,cpu", "tpu": "tpu,cpu"}
    os.environ["JAX_PLATFORMS"] = platforms.get(where["platform"], where["platform"])  # no section may use others
    ended = [run(name, path, sizes, end + SECONDS * (sizes == "small")) for name in options.sections]
    return 0 if all(ended) else 1


def machine() -> dict[str, Any]:
    """What is here, from a process that has ended: one that asks takes the memory of GPUs."""
    options: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 90}
    done = subprocess.run([sys.executable, "-c", DEVICES], check=False, **options)
    if done.returncode:
        raise SystemExit(f"JAX finds no devices: {done.stderr.strip()[-500:]}")
    where = {**json.loads(done.stdout.splitlines()[-1]), "driver": None, "date": f"{datetime.date.today()}"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        where["driver"] = subprocess.run(command, check=True, **options).stdout.split()[0]
    return where


def run(name: str, path: pathlib.Path, sizes: str, end: float) -> bool:
    """Run a section in a process, which is killed with its children when its time is over, and print its results."""
    began, before, error, folder = time.monotonic(), path.stat().st_size, "", path.parent.absolute()
    seconds = max(0, min(SECTIONS[name].seconds if sizes == "full" else SECONDS, end - began))
    command = [sys.executable, "-m", "benchmarks.accelerator.sections", name, str(folder / path.name), sizes]
    with (folder / f"{path.stem}-{name}.log").open("w") as log:
        options: dict[str, Any] = {"cwd": ROOT, "stdout": log, "stderr": log, "start_new_session": True}
        process = subprocess.Popen(command, **options)
        try:
            error = f"ended with {code}: {log.name}" if (code := process.wait(seconds)) else ""
        except subprocess.TimeoutExpired:
            error = f"not finished in {seconds:.0f} s: {log.name}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(folder / "temporary", ignore_errors=True)
    last = failed("the section", error) if error else result("the section took", time.monotonic() - began, "s")
    with path.open("a+") as file:
        print(json.dumps({"section": name, **last}), file=file)
        file.seek(before)
        print(*(f"  {name}: {text(json.loads(line))}" for line in file), sep="\n", flush=True)
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
