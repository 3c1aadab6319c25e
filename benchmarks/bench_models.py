"""Fifty small models in a loop, made, compiled and fitted: equal ones, as in a search, and ones of various shapes.

Fresh interpreters that take turns, by the processor time of all threads, without the import.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import numpy as np

from benchmarks import measure as m

MODELS = 50
AIM = 1.0


def measure(package: str, models: int, *, alike: bool) -> float:
    """Return the seconds of work of all threads for these models of a package."""
    os.environ["KERAS_BACKEND"] = "jax"
    keras = importlib.import_module(package)
    rng = np.random.default_rng(0)
    began = time.process_time()
    for _ in range(models):
        if alike:
            rng = np.random.default_rng(0)
        features, *sizes = rng.integers(4, 65, size=rng.integers(3, 6)).tolist()
        layers = [keras.layers.Dense(size, activation="relu") for size in sizes]
        model = keras.Sequential([keras.Input((features,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        x, y = rng.normal(size=(64, features)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
        model.fit(x, y, epochs=2, verbose=0)
    return time.process_time() - began


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    results = []
    for alike, what in ((True, "equal models"), (False, "models of various shapes")):
        case: dict[str, Any] = {"models": 5 if quick else MODELS, "alike": alike}
        runs = {
            package: lambda package=package, case=case: m.in_process(__spec__.name, package=package, **case)
            for package in ("keras_dist", "keras")
        }
        samples = m.take_turns(runs, 1 if quick else 5)
        ours, theirs, per = samples["keras_dist"], samples["keras"], case["models"]
        results.append(m.result(f"{what}, all threads", ours, theirs, "s a model", per, AIM))
    return results


if __name__ == "__main__":
    m.main("models", "small models in a loop / those of Keras 3 on JAX", run, __doc__)
