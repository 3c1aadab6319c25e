"""What starting costs: touching `kd.Model` and `kd.layers`, against importing jax, flax.nnx and optax alone.

Fresh interpreters, interleaved; medians of wall time in seconds. The aim is a ratio of at most 1.3.
"""

import json
import statistics
import subprocess
import sys
import time

ROUNDS = 11
PROGRAMS = {
    "jax, flax.nnx, optax": "import jax, flax.nnx, optax",
    "keras_dist": "import keras_dist",
    "kd.Model, kd.layers": "import keras_dist as kd; kd.Model; kd.layers",
}
AIM = 1.3


def wall_seconds(program: str) -> float:
    """The time that a fresh interpreter takes to run `program`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure, and print a line of JSON."""
    for program in PROGRAMS.values():
        wall_seconds(program)  # fill the file cache
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            seconds[name].append(wall_seconds(program))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = medians["kd.Model, kd.layers"] / medians["jax, flax.nnx, optax"]
    print(json.dumps({"median_seconds": medians, "ratio": round(ratio, 3), "aim": AIM}))


if __name__ == "__main__":
    main()
