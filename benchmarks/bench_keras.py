"""keras_dist against Keras 3 on JAX: the same model, data and mesh, each as good as it comes.

`fit` is timed in one process for each number of devices and batch size; a whole program, from the start of the
interpreter to the end of three epochs on handwritten digits, in fresh processes that take turns.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import keras
import numpy as np
import sklearn.datasets

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import images, make_model

ROWS = 2560
GROUPED = 20

# devices, rows of a batch, epochs of a run, aim of `fit` as it comes
CASES = ((1, 16, 2, 0.65), (1, 128, 10, 0.9), (8, 128, 5, 0.9))
GROUPED_AIM = 0.75
PROGRAM_AIM = 0.8

PROGRAM = """
import sys
import numpy as np
import {package} as keras

data = np.load(sys.argv[1])
model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Dense(64, activation="relu"),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(10, activation="softmax"),
])
model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(data["x"], data["y"], epochs=3, verbose=2)
"""


def measure(devices: int, batch_size: int, epochs: int, rounds: int, aim: float) -> list[Any]:
    """The results of one process."""
    kd.use_cpu_devices(devices)
    kd.set_distribution(kd.DataParallel())
    if devices > 1:  # on one device Keras is faster without
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    x, y = images(ROWS)
    models = {
        "ours": make_model(kd),
        "keras": make_model(keras),
        "ours grouped": make_model(kd, steps_per_execution=GROUPED),
        "keras grouped": make_model(keras, steps_per_execution=GROUPED),
    }

    def fit(model: Any) -> Any:
        return lambda: model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)

    samples = m.interleave({name: fit(model) for name, model in models.items()}, rounds)
    where = f"{devices} device{'s' * (devices > 1)}, batch {batch_size}"
    step = {"unit": "us a step", "per": epochs * ROWS / batch_size / 1e6}
    return [
        m.result(f"fit as it comes, {where}", samples["ours"].wall, samples["keras"].wall, **step, aim=aim),
        m.result(
            f"fit(steps_per_execution={GROUPED}), {where}",
            samples["ours grouped"].wall,
            samples["keras grouped"].wall,
            **step,
            aim=GROUPED_AIM,
        ),
    ]


def measure_programs(rounds: int) -> dict[str, Any]:
    """A whole run in fresh interpreters."""
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "digits.npz")
        x, y = sklearn.datasets.load_digits(return_X_y=True)
        np.savez(data, x=x.astype(np.float32) / 16, y=y)

        def run(package: str) -> Any:
            command = [sys.executable, "-c", PROGRAM.format(package=package), str(data)]
            return lambda: subprocess.run(command, cwd=m.ROOT, check=True, capture_output=True, env=m.as_installed())

        samples = m.interleave({"ours": run("keras_dist"), "keras": run("keras")}, rounds, warmup=1)
    return m.result("a whole program", samples["ours"].wall, samples["keras"].wall, "s", aim=PROGRAM_AIM)


def main() -> None:
    """Measure and report."""
    quick = m.is_quick(__doc__)
    results = [measure_programs(2 if quick else 7)]
    for devices, batch_size, epochs, aim in CASES:
        case = {"devices": devices, "batch_size": batch_size, "epochs": epochs, "aim": aim}
        results += m.in_process(__spec__.name, **case, rounds=3 if quick else 11)
    m.report("keras", "keras_dist / Keras 3 on JAX", results, quick)


if __name__ == "__main__":
    main()
