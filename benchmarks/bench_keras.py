"""keras_dist against Keras 3 on JAX: the same model, data and mesh, each as good as it comes.

`fit` is timed in one process for each number of devices and batch size; a whole program, from the start of the
interpreter to the end of three epochs on handwritten digits, in fresh processes that take turns.
"""

from __future__ import annotations

from typing import Any

import keras

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.programs import run_programs
from benchmarks.workload import images, make_model

ROWS = 2560
GROUPED = 20

# devices, rows of a batch, epochs of a run, aim of `fit` as it comes
CASES = ((1, 16, 2, 0.65), (1, 128, 10, 0.9), (8, 128, 5, 0.9))
GROUPED_AIM = 0.75
PROGRAM_AIM = 0.8


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
    grouped = f"fit(steps_per_execution={GROUPED})"
    return [
        *m.compare(samples, "ours", "keras", "fit as it comes", where, **step, wall=aim),
        *m.compare(samples, "ours grouped", "keras grouped", grouped, where, **step, wall=GROUPED_AIM),
    ]


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    packages = {"ours": ("keras_dist", ""), "keras": ("keras", "")}
    samples = run_programs(packages, "epochs=3, verbose=2", 2 if quick else 7)
    results = m.compare(samples, "ours", "keras", "a whole program", unit="s", wall=PROGRAM_AIM)
    for devices, batch_size, epochs, aim in CASES:
        case = {"devices": devices, "batch_size": batch_size, "epochs": epochs, "aim": aim}
        results += m.in_process(__spec__.name, **case, rounds=3 if quick else 11)
    return results


if __name__ == "__main__":
    m.main("keras", "keras_dist / Keras 3 on JAX", run, __doc__)
