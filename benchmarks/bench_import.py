"""What starting costs: touching `kd.Model` and `kd.layers`, against importing jax, flax.nnx and optax alone.

Fresh interpreters that take turns.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

from benchmarks import measure as m

PROGRAMS = {
    "theirs": "import jax, flax.nnx, optax",
    "bare": "import keras_dist",
    "used": "import keras_dist as kd; kd.Model; kd.layers",
}
AIM = 1.2


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    start = functools.partial(subprocess.run, check=True, cwd=m.ROOT, env=m.as_installed())
    runs = {name: functools.partial(start, [sys.executable, "-c", program]) for name, program in PROGRAMS.items()}
    samples = m.interleave(runs, 3 if quick else 11, warmup=1)
    return [
        *m.compare(samples, "used", "theirs", "import keras_dist; kd.Model, kd.layers", unit="s", wall=AIM),
        *m.compare(samples, "bare", "theirs", "import keras_dist", unit="s", wall=None),
    ]


if __name__ == "__main__":
    m.main("import", "start / importing jax, flax.nnx, optax", run, __doc__)
