"""A cold start: import, a small model and its first epoch on handwritten digits, against Keras 3 on JAX.

Fresh interpreters that take turns; and a second start with `kd.use_compilation_cache`, against the first.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import sklearn.datasets

from benchmarks import measure as m

ROWS = 1437
AIM = 0.75

PROGRAM = """
import sys
import numpy as np
import {package} as keras
{before}
data = np.load(sys.argv[1])
model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Dense(64, activation="relu"),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(10, activation="softmax"),
])
model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(data["x"], data["y"], batch_size=32, epochs=1, verbose=0)
"""
CACHED = "keras.use_compilation_cache(sys.argv[2])"


def main() -> None:
    """Measure and report."""
    quick = m.is_quick(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "digits.npz")
        x, y = sklearn.datasets.load_digits(return_X_y=True)
        np.savez(data, x=x[:ROWS].astype(np.float32) / 16, y=y[:ROWS])

        def run(package: str, before: str = "") -> Any:
            program = PROGRAM.format(package=package, before=before)
            command = [sys.executable, "-c", program, str(data), str(pathlib.Path(folder, "programs"))]
            return lambda: subprocess.run(command, cwd=m.ROOT, check=True, capture_output=True, env=environment)

        environment = {**m.as_installed(), "KERAS_BACKEND": "jax"}
        runs = {"ours": run("keras_dist"), "keras": run("keras"), "second": run("keras_dist", CACHED)}
        samples = m.interleave(runs, 2 if quick else 9, warmup=1)
    results = [
        m.result("import, model, first epoch", samples["ours"].wall, samples["keras"].wall, "s", aim=AIM),
        m.result("the same from the compilation cache", samples["second"].wall, samples["keras"].wall, "s"),
    ]
    m.report("start", "a cold start / a cold start of Keras 3 on JAX", results, quick)


if __name__ == "__main__":
    main()
