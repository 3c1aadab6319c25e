"""Whole programs that train a small model on handwritten digits, in fresh interpreters that take turns."""

from __future__ import annotations

import functools
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import numpy as np
import sklearn.datasets

from benchmarks import measure as m

PROGRAM = """
import sys
import numpy as np
import {package} as keras
{before}
data = np.load(sys.argv[1])
model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Dense(64, activation="relu"),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(10, activation="softmax"),
])
model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(data["x"], data["y"], {fit})
"""
CACHED = "keras.use_compilation_cache(sys.argv[2])"


def run_programs(
    packages: Mapping[str, tuple[str, str]], fit: str, rounds: int, rows: int | None = None
) -> dict[str, m.Samples]:
    """Run the program with each package, and what it does `before` the model, on so many rows of the digits."""
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "digits.npz")
        x, y = sklearn.datasets.load_digits(return_X_y=True)
        np.savez(data, x=x[:rows].astype(np.float32) / 16, y=y[:rows])
        arguments = [str(data), str(pathlib.Path(folder, "programs"))]
        programs = {
            name: [sys.executable, "-c", PROGRAM.format(package=package, before=before, fit=fit), *arguments]
            for name, (package, before) in packages.items()
        }
        options = {"cwd": m.ROOT, "check": True, "capture_output": True}
        environment = {**m.as_installed(), "KERAS_BACKEND": "jax"}
        run = functools.partial(subprocess.run, env=environment, **options)
        runs = {name: functools.partial(run, command) for name, command in programs.items()}
        return m.interleave(runs, rounds, warmup=1)
