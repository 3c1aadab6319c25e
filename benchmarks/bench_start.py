"""A cold start: import, a small model and its first epoch on handwritten digits, against Keras 3 on JAX.

Fresh interpreters that take turns; and a second start with `kd.use_compilation_cache`, against the first.
"""

from __future__ import annotations

from typing import Any

from benchmarks import measure as m
from benchmarks.programs import CACHED, run_programs

ROWS = 1437
AIM = 0.75
PACKAGES = {"ours": ("keras_dist", ""), "keras": ("keras", ""), "second": ("keras_dist", CACHED)}


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    samples = run_programs(PACKAGES, "batch_size=32, epochs=1, verbose=0", 2 if quick else 9, ROWS)
    return [
        *m.compare(samples, "ours", "keras", "import, model, first epoch", unit="s", wall=AIM),
        *m.compare(samples, "second", "keras", "the same from the compilation cache", unit="s", wall=None),
    ]


if __name__ == "__main__":
    m.main("start", "a cold start / a cold start of Keras 3 on JAX", run, __doc__)
