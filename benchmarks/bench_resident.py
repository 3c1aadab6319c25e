"""`fit` on data that stays on the device, against the best loop by hand that has it there before it begins.

The MLP of the guide, batch 128, 15,360 rows, one device. Over several epochs `fit` should cost what the loop by hand
does, although it has to bring the data first; over one epoch no more than its own single steps.
"""

from __future__ import annotations

from typing import Any

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import Network, ResidentLoop, images, make_model

ROWS, BATCH_SIZE, GROUPED = 15360, 128, 20


def measure(epochs: int, rounds: int) -> list[Any]:
    """The results of one process."""
    kd.use_cpu_devices(1)
    kd.set_distribution(kd.DataParallel())
    x, y = images(ROWS)
    bare = ResidentLoop(Network(), 1, x, y, BATCH_SIZE)
    options = {"as it comes": "auto", "single steps": 1, f"steps_per_execution={GROUPED}": GROUPED}
    models = {name: make_model(kd, steps_per_execution=steps) for name, steps in options.items()}

    def fit(model: Any) -> Any:
        return lambda: model.fit(x, y, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)

    samples = m.interleave(
        {"by hand": lambda: bare.run(epochs), **{n: fit(model) for n, model in models.items()}}, rounds
    )

    def compare(ours: str, theirs: str, **aims: float | None) -> list[dict[str, Any]]:
        what = f"{ours} / {theirs}, {epochs} epoch{'s' * (epochs > 1)}"
        return m.compare(samples, ours, theirs, what, unit="ms a step", per=epochs * ROWS / BATCH_SIZE / 1e3, **aims)

    return [
        *compare("as it comes", "by hand", wall=1.05 if epochs > 1 else None, all_cpu=None),
        *compare("single steps", "by hand", wall=None),
        *compare("as it comes", "single steps", wall=1.05),
        *compare(f"steps_per_execution={GROUPED}", "as it comes", wall=1.05),
    ]


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    results = []
    for epochs, rounds in ((1, 15), (10, 11)):
        results += m.in_process(__spec__.name, epochs=epochs, rounds=3 if quick else rounds)
    return results


if __name__ == "__main__":
    m.main("resident", "`fit` / a scan by hand over data on the device", run, __doc__)
