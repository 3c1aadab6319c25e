"""A job of two processes: `fit` against a loop by hand, and against TensorFlow 2.15's MultiWorkerMirroredStrategy.

All train the CNN of TensorFlow's tutorial on images of MNIST's size and number, 64 of a batch in each process, for
epochs of 70 steps. Jobs take turns, each in fresh processes with cores of their own. Without `make dtensor` only the
loop by hand is compared, and nothing is written.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import numpy as np

import keras_dist as kd
from benchmarks import measure as m

TENSORFLOW = m.ROOT / ".venv-dtensor" / "bin" / "python"
PROCESSES, BATCH_SIZE = 2, 128


def measure(rows: int, batch_size: int, steps: int, epochs: int) -> float:
    """Train in one of the processes, and return the seconds of a step."""
    kd.initialize()
    kd.set_distribution(kd.DataParallel())
    rng = np.random.default_rng(0)
    x, y = rng.random((rows, 28, 28), np.float32), rng.integers(0, 10, rows)
    ends: list[float] = []
    clock = kd.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    model = make_model()
    model.fit(x, y, batch_size, 1 + epochs, steps_per_epoch=steps, callbacks=[clock], verbose=0)
    return (ends[-1] - ends[0]) / epochs / steps


def make_model() -> Any:
    """The tutorial's."""
    layers = kd.layers
    model = kd.Sequential(
        [
            kd.Input((28, 28)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(kd.optimizers.SGD(0.001), loss=loss, metrics=["accuracy"])
    return model


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    rows, steps, epochs, rounds = (6400, 20, 1, 2) if quick else (25600, 70, 2, 5)
    sizes = dict(zip(("rows", "batch_size", "steps", "epochs"), (rows, BATCH_SIZE, steps, epochs), strict=True))
    folder = m.ROOT / "benchmarks"
    commands = {
        "fit": m.measuring(__spec__.name, **sizes),
        "by hand": [sys.executable, str(folder / "process_loop.py"), *map(str, sizes.values())],
    }
    if TENSORFLOW.exists():
        commands["TensorFlow"] = [str(TENSORFLOW), str(folder / "mirrored_loop.py"), *map(str, sizes.values())]
    else:
        print("TensorFlow 2.15 is not installed: `make dtensor` makes an environment for it")
    jobs = {name: functools.partial(m.in_job, command, PROCESSES) for name, command in commands.items()}
    # in seconds of a step; the slowest process tells how long the job takes
    seconds = {name: [max(told) for told in results] for name, results in m.take_turns(jobs, rounds).items()}
    where = f"{PROCESSES} processes, batch {BATCH_SIZE}"
    compare = functools.partial(m.result, unit="ms a step", per=1e-3)
    results = [compare(f"fit / a loop by hand, {where}", seconds["fit"], seconds["by hand"], aim=1.05)]
    if TENSORFLOW.exists():
        what = f"fit / TensorFlow's MultiWorkerMirroredStrategy, {where}"
        results.append(compare(what, seconds["fit"], seconds["TensorFlow"], aim=0.6))
    return results


if __name__ == "__main__":
    m.main("jobs", "jobs of several processes", run, __doc__, writes=TENSORFLOW.exists())
