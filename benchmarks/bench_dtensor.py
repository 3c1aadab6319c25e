"""keras_dist against TensorFlow 2.15's DTensor: its two tutorials on eight virtual CPUs, batch 128.

Processes that take turns, for the two need different versions of numpy. Without `make dtensor` nothing is measured.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import keras_dist as kd
from benchmarks import measure as m
from examples import dtensor_core, dtensor_keras
from keras_dist import dtensor

PYTHON = m.ROOT / ".venv-dtensor" / "bin" / "python"
DEVICES, BATCH_SIZE = 8, 128


def measure(rows: int, epochs: int, program: str) -> float:
    """The seconds of a step of `fit`, of the Keras tutorial's loop, or of the core tutorial's."""
    kd.use_cpu_devices(DEVICES)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, rows)
    mesh = dtensor.create_mesh([("batch", DEVICES)])
    train = {"fit": fit, "keras": keras, "core": core}[program](mesh, x, y)
    train(1)
    started = time.perf_counter()
    train(epochs)
    return (time.perf_counter() - started) / epochs / (rows // BATCH_SIZE)


def fit(mesh: Any, x: np.ndarray, y: np.ndarray) -> Callable[[int], Any]:
    """`fit`, as it comes."""
    model = dtensor_keras.make_model(mesh)
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(kd.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return lambda epochs: model.fit(x, y, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)


def keras(mesh: Any, x: np.ndarray, y: np.ndarray) -> Callable[[int], Any]:
    """The loop of the tutorial with Keras, without its progress bar."""
    model, optimizer = dtensor_keras.make_model(mesh), kd.optimizers.Adam(0.01)
    metrics = {"accuracy": kd.metrics.SparseCategoricalAccuracy(mesh=mesh)}
    layouts = [dtensor.Layout.batch_sharded(mesh, "batch", rank=array.ndim) for array in (x, y)]

    def train(epochs: int) -> None:
        for _ in range(epochs):
            for metric in metrics.values():
                metric.reset_state()
            results: dict[str, Any] = {}
            for batch in batches(x, y):
                packed = dtensor_keras.pack_dtensor_inputs(*batch, *layouts)
                results.update(dtensor_keras.train_step(model, *packed, optimizer, metrics))
                for name, metric in metrics.items():
                    results[name] = metric.result()
            np.asarray(results["loss"])

    return train


def core(mesh: Any, x: np.ndarray, y: np.ndarray) -> Callable[[int], Any]:
    """The loop of the tutorial with the core API."""
    model = dtensor_core.make_model(mesh)
    optimizer = dtensor_core.Adam(model.trainable_variables)

    def train(epochs: int) -> None:
        loss: Any = None
        for _ in range(epochs):
            for rows, labels in batches(x.reshape(-1, 784), y):
                batch = dtensor_core.repack_batch(rows, labels, mesh)
                loss, _ = dtensor_core.train_step(
                    model, *batch, dtensor_core.cross_entropy_loss, dtensor_core.accuracy, optimizer
                )
            np.asarray(loss)

    return train


def batches(x: np.ndarray, y: np.ndarray) -> Any:
    """In order; the tutorials' own are made by tf.data."""
    for first in range(0, len(x), BATCH_SIZE):
        yield x[first : first + BATCH_SIZE], y[first : first + BATCH_SIZE]


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    rows, epochs, rounds = (1280, 1, 2) if quick else (12800, 2, 5)
    folder = m.ROOT / "benchmarks"
    ours = {
        name: functools.partial(m.in_process, __spec__.name, rows=rows, epochs=epochs, program=name)
        for name in ("fit", "keras", "core")
    }
    theirs = {
        name: functools.partial(m.in_script, PYTHON, folder / script, str(rows), str(epochs))
        for name, script in (("their keras", "dtensor_loop.py"), ("their core", "dtensor_core_loop.py"))
    }
    seconds = m.take_turns(ours | theirs, rounds)
    return [
        m.result(f"{name}, 8 devices, batch 128", seconds[own], seconds[other], "ms a step", 1e-3, aim)
        for name, own, other, aim in (
            ("fit as it comes / Keras tutorial's loop", "fit", "their keras", 0.6),
            ("Keras tutorial's loop / the original", "keras", "their keras", 0.6),
            ("core tutorial's loop / the original", "core", "their core", 0.3),
        )
    ]


if __name__ == "__main__":
    if PYTHON.exists():
        m.main("dtensor", "keras_dist / TensorFlow 2.15's DTensor", run, __doc__)
    else:
        print("TensorFlow 2.15 is not installed: `make dtensor` makes an environment for it")
