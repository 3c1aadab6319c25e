"""keras_dist against TensorFlow 2.15's DTensor: its Keras tutorial on eight virtual CPUs, batch 128.

Processes that take turns, for the two need different versions of numpy. Without `make dtensor` nothing is measured.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import keras_dist as kd
from benchmarks import measure as m

PYTHON = m.ROOT / ".venv-dtensor" / "bin" / "python"
SCRIPT = m.ROOT / "benchmarks" / "dtensor_loop.py"
DEVICES, BATCH_SIZE = 8, 128
AIM = 0.6


def measure(rows: int, epochs: int) -> float:
    """The seconds of a step."""
    kd.use_cpu_devices(DEVICES)
    kd.set_distribution(kd.DataParallel())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, rows)
    model = make_model()
    model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)
    started = time.perf_counter()
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)
    return (time.perf_counter() - started) / epochs / (rows // BATCH_SIZE)


def make_model() -> Any:
    """The tutorial's."""
    layers = kd.layers
    model = kd.Sequential(
        [
            kd.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu", name="d1"),
            layers.Dense(10, name="d2"),
        ]
    )
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(kd.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Measure and report."""
    quick = m.is_quick(__doc__)
    if not PYTHON.exists():
        print("TensorFlow 2.15 is not installed: `make dtensor` makes an environment for it")
        return
    rows, epochs, rounds = (1280, 1, 2) if quick else (12800, 2, 5)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(m.in_process(__spec__.name, rows=rows, epochs=epochs))
        theirs.append(m.in_script(PYTHON, SCRIPT, str(rows), str(epochs)))
    line = m.result("fit as it comes / tutorial's loop, 8 devices, batch 128", ours, theirs, "ms a step", 1e-3, AIM)
    m.report("dtensor", "keras_dist / TensorFlow 2.15's DTensor", [line], quick)


if __name__ == "__main__":
    main()
