"""What starting costs: touching `kd.Model` and `kd.layers`, against importing jax, flax.nnx and optax alone.

Fresh interpreters that take turns.
"""

from __future__ import annotations

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


def main() -> None:
    """Measure and report."""
    quick = m.is_quick(__doc__)

    def run(program: str) -> Any:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True, cwd=m.ROOT, env=m.as_installed())

    runs = {name: run(program) for name, program in PROGRAMS.items()}
    samples = m.interleave(runs, 3 if quick else 11, warmup=1)
    results = [
        m.result("import keras_dist; kd.Model, kd.layers", samples["used"].wall, samples["theirs"].wall, "s", aim=AIM),
        m.result("import keras_dist", samples["bare"].wall, samples["theirs"].wall, "s"),
    ]
    m.report("import", "start / importing jax, flax.nnx, optax", results, quick)


if __name__ == "__main__":
    main()
