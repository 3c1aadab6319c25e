"""`fit` against the best loop one can write by hand: what does the comfort cost, and what does `"auto"` give back?

One process for each number of devices and batch size. `steps_per_execution=1` streams a batch a step, as the loop by
hand does; as it comes, `fit` keeps the data on the devices where it fits and runs many steps at once.
"""

from __future__ import annotations

from typing import Any

import jax

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import BareLoop, Network, images, make_model

RESIDENT_ROWS = 2560
"""A data set that `fit` keeps on eight fake devices."""

STREAMED_ROWS = 25600
"""One that it does not."""

# devices, rows of a batch, epochs of a run, aim of `fit` as it comes
CASES = ((1, 16, 3, 0.8), (1, 128, 10, 0.9), (8, 16, 1, 0.95), (8, 128, 5, 0.95))


def measure(devices: int | None, batch_size: int, epochs: int, rows: int, rounds: int, aim: float | None) -> list[Any]:
    """The results of one process, on fake CPU devices, or on those that are here."""
    if devices is None:
        devices = jax.device_count()
    else:
        kd.use_cpu_devices(devices)
    kd.set_distribution(kd.DataParallel())
    x, y = images(rows)
    bare = BareLoop(Network(), devices, x, y, batch_size)
    one, auto = make_model(kd, steps_per_execution=1), make_model(kd)
    fit = {"batch_size": batch_size, "epochs": epochs, "verbose": 0}
    runs = {
        "bare": lambda: bare.run(epochs),
        "one": lambda: one.fit(x, y, **fit),
        "auto": lambda: auto.fit(x, y, **fit),
    }
    samples = m.interleave(runs, rounds)
    steps = epochs * rows // batch_size
    where = f"{devices} device{'s' * (devices > 1)}, batch {batch_size}"

    step = {"unit": "us a step", "per": steps / 1e6}
    if aim is None:
        return m.compare(samples, "auto", "bare", "as it comes, large data", where, **step, wall=None)
    return [
        *m.compare(samples, "one", "bare", "one step at once", where, **step, wall=1.05, cpu=1.3, all_cpu=None),
        *m.compare(samples, "auto", "bare", "as it comes", where, **step, wall=aim, cpu=None, all_cpu=None),
    ]


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    rounds = 3 if quick else 15
    results = []
    for devices, batch_size, epochs, aim in CASES:
        case = {"devices": devices, "batch_size": batch_size, "rounds": rounds}
        results += m.in_process(__spec__.name, **case, epochs=epochs, rows=RESIDENT_ROWS, aim=aim)
    for devices, batch_size, epochs in ((1, 16, 3), (1, 128, 1), (8, 128, 1)):
        case = {"devices": devices, "batch_size": batch_size, "rounds": 2 if quick else 5}
        results += m.in_process(__spec__.name, **case, epochs=epochs, rows=STREAMED_ROWS, aim=None)
    return results


if __name__ == "__main__":
    m.main("loop", "`fit` / a loop by hand", run, __doc__)
