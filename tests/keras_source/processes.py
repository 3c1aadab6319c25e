"""Runs Keras's tests of several processes in a job on this machine: `python -m tests.keras_source.processes`.

`tf.data` is that of TensorFlow where it is installed, else a stand-in.
"""

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from tests.keras_source import downloads
from tests.keras_source.modules import OTHERS
from tests.keras_source.unit_tests import (
    TESTS,
    all_tests,
    arguments_of,
    environment_of,
    judged,
    last_lines,
    rewrite_into,
    table,
)

NAME = "jax_multi_process_distribution_test.py"
"""It stands in Keras since the versions after 3.15."""


class Dataset(downloads.Dataset):
    """What `Distribution.distribute_dataset` uses of `tf.data.Dataset`, too: batches of numbers."""

    element_spec = types.SimpleNamespace(shape=types.SimpleNamespace(rank=1))

    @classmethod
    def range(cls, stop: int) -> "Dataset":
        """The numbers below `stop`."""
        return cls.from_tensor_slices(np.arange(stop))

    def rebatch(self, size: int) -> "Dataset":
        """The same rows in other batches."""
        return self.from_tensor_slices(np.concatenate(list(self))).batch(size)

    def shard(self, count: int, index: int) -> "Dataset":
        """Every so many batches."""

        def batches() -> Iterator[Any]:
            return (batch for i, batch in enumerate(self) if i % count == index)

        return type(self)(batches, len(range(index, len(self), count)))


def install_datasets() -> None:
    """Serve `tensorflow.data`, also to rewritten tests."""
    others = importlib.import_module(OTHERS)
    if importlib.util.find_spec("tensorflow") is not None:
        tensorflow = importlib.import_module("tensorflow")
    else:
        data = types.SimpleNamespace(Dataset=Dataset, AUTOTUNE=-1)
        tensorflow = downloads.module("tensorflow", data=data, nest=types.SimpleNamespace(flatten=lambda spec: [spec]))
        sizes = types.SimpleNamespace(
            compute_batch_size=lambda batches: types.SimpleNamespace(numpy=lambda: len(next(iter(batches))))
        )
        for name in ("", ".data", ".data.experimental"):
            downloads.module(f"tensorflow.python{name}")
        downloads.module("tensorflow.python.data.experimental.ops", distribute=sizes)
    sys.modules[f"{OTHERS}.tensorflow"] = tensorflow
    vars(others)["tensorflow"] = tensorflow


def run_process(folder: pathlib.Path, name: str) -> int:
    """Join the job and run the tests in this process."""
    kd.distribution.initialize()
    plugin = importlib.import_module("tests.keras_source.plugin")
    install_datasets()
    code = pytest.main([*arguments_of(folder), str(folder / TESTS / name)], plugins=[plugin])
    jax.effects_barrier()
    return int(code)


def run_job(folder: pathlib.Path, source: pathlib.Path, name: str, processes: int, devices: int) -> list[Any]:
    """Return what each process has written about each test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.keras_source.processes", "--source", str(source), "--run", name]
    started, results = [], []
    for index in range(processes):
        results.append(folder / f"results{index}.jsonl")
        environment = environment_of(folder, source, results[index], seconds=300)
        environment["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={devices}"
        environment |= {
            "PJRT_NPROC": "32",
            "TRIAL_FOLDER": str(folder),
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(processes),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
        }
        with (folder / f"log{index}").open("w") as log:
            started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log))
    for process in started:
        process.wait()
    return [last_lines(file) for file in results]


def worst(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one line about each test: that of the process in which it passed least."""
    merged: dict[str, Any] = {}
    for lines in found:
        for name, line in lines.items():
            if line["outcome"] == "began":
                line |= {"outcome": "failed", "error": "the process ended"}
            if name not in merged or line["outcome"] == "failed":
                merged[name] = line
    return merged


def main() -> None:
    """Run the tests, print a table and what failed, and write the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True, help="a checkout of Keras, newer than 3.15")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices", type=int, default=2, help="of each process")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("failures.json"))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        sys.exit(run_process(pathlib.Path(os.environ["TRIAL_FOLDER"]), given.run))
    source = given.source.resolve()
    names = [name for name in all_tests(source) if name.endswith(NAME)]
    if not names:
        parser.error(f"{source} has no {NAME}")
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        rewrite_into(folder, source)
        found = run_job(folder, source, names[0], given.processes, given.devices)
        logs = [(folder / f"log{index}").read_text()[-2000:] for index in range(given.processes)]
    records = judged(worst(found), source)
    given.to.write_text(json.dumps(records, indent=1))
    print(table(records) if records else "\n".join(logs))
    for record in records:
        if record["outcome"] not in ("passed", "skipped"):
            print(f"{record['outcome']}: {record['id']}: {record['error']}")


if __name__ == "__main__":
    main()
