"""`fit` against the best loop one can write by hand: what does the comfort cost, and what does `"auto"` give back?

One process for each number of devices and batch size. `steps_per_execution=1` streams a batch a step, as the loop by
hand does; as it comes, `fit` keeps the data on the devices where it fits and runs many steps at once.
"""

from __future__ import annotations

from typing import Any

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import BareLoop, Network, images, make_model

RESIDENT_ROWS = 2560
"""A data set that `fit` keeps on eight fake devices."""

STREAMED_ROWS = 25600
"""One that it does not."""

# devices, rows of a batch, epochs of a run, aim of `fit` as it comes
CASES = ((1, 16, 3, 0.8), (1, 128, 10, 0.9), (8, 16, 1, 0.95), (8, 128, 5, 0.95))


def measure(devices: int, batch_size: int, epochs: int, rows: int, rounds: int, aim: float | None) -> list[Any]:
    """The results of one process."""
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

    def compare(what: str, name: str, clock: str, aim: float | None = None) -> dict[str, Any]:
        ours, theirs = (getattr(samples[who], clock) for who in (name, "bare"))
        return m.result(f"{what}, {where}", ours, theirs, "us a step", steps / 1e6, aim)

    if aim is None:
        return [compare("as it comes, large data", "auto", "wall")]
    return [
        compare("one step at once", "one", "wall", 1.05),
        compare("one step at once, main thread", "one", "cpu", 1.3),
        compare("one step at once, all threads", "one", "all_cpu"),
        compare("as it comes", "auto", "wall", aim),
        compare("as it comes, main thread", "auto", "cpu"),
        compare("as it comes, all threads", "auto", "all_cpu"),
    ]


def main() -> None:
    """Measure and report."""
    quick = m.is_quick(__doc__)
    rounds = 3 if quick else 15
    results = []
    for devices, batch_size, epochs, aim in CASES:
        case = {"devices": devices, "batch_size": batch_size, "rounds": rounds}
        results += m.in_process(__spec__.name, **case, epochs=epochs, rows=RESIDENT_ROWS, aim=aim)
    for devices, batch_size, epochs in ((1, 16, 3), (1, 128, 1), (8, 128, 1)):
        case = {"devices": devices, "batch_size": batch_size, "rounds": 2 if quick else 5}
        results += m.in_process(__spec__.name, **case, epochs=epochs, rows=STREAMED_ROWS, aim=None)
    m.report("loop", "`fit` / a loop by hand", results, quick)


if __name__ == "__main__":
    main()
