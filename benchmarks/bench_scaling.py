"""How the cost of `fit` grows with the work, and how that of the loop by hand does.

Parameters, devices, variables, and steps of an epoch; one process for each point, batches of 32 rows. Times are those
of a step with `steps_per_execution=1`, of the main thread where it says so; with many variables that is all that
`fit` can add to.
"""

from __future__ import annotations

from typing import Any

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import BareLoop, Network, images, make_model

BATCH_SIZE = 32
GROWTH_AIM = 1.1
"""Of the main thread's time from the smallest to the largest network, over the loop by hand's; 1, and some noise."""


def measure(
    hidden: list[int], rounds: int, devices: int = 1, steps: int = 50, as_it_comes: bool = False
) -> dict[str, Any]:
    """Samples of both, by what was sampled, in seconds a step."""
    kd.use_cpu_devices(devices)
    kd.set_distribution(kd.DataParallel())
    x, y = images(BATCH_SIZE * steps)
    network = Network(tuple(hidden))
    model = make_model(kd, network, steps_per_execution="auto" if as_it_comes else 1)
    bare = BareLoop(network, devices, x, y, BATCH_SIZE)
    runs = {"ours": lambda: model.fit(x, y, batch_size=BATCH_SIZE, verbose=0), "bare": bare.run}
    samples = m.interleave(runs, rounds)
    return {
        name: {"wall": [wall / steps for wall in taken.wall], "cpu": [cpu / steps for cpu in taken.cpu]}
        for name, taken in samples.items()
    }


def compare(name: str, samples: dict[str, Any], clock: str = "wall") -> dict[str, Any]:
    """One point."""
    return m.result(name, samples["ours"][clock], samples["bare"][clock], "us a step", 1e-6)


def grown(name: str, small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """By which factor the main thread's time grew, ours over the loop by hand's."""
    ours, bare = (
        [after / before for after, before in zip(large[who]["cpu"], small[who]["cpu"], strict=True)]
        for who in ("ours", "bare")
    )
    return m.result(name, ours, bare, "times", aim=GROWTH_AIM)


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    rounds = 2 if quick else 5

    def point(hidden: tuple[int, ...] = (200,), **arguments: Any) -> dict[str, Any]:
        return m.in_process(__spec__.name, hidden=hidden, rounds=rounds, **arguments)

    results = []
    for factor in (1, 10, 100):
        results.append(compare(f"parameters x{factor}", point((200 * factor,), steps=10)))
    for devices in (1, 2, 4, 8, 32):
        results.append(compare(f"devices: {devices}", point(devices=devices, steps=20)))
    variables = {count: point((16,) * (count - 2), steps=20) for count in ((10, 100) if quick else (10, 100, 1000))}
    for count, samples in variables.items():
        results.append(compare(f"variables: {count}", samples))
        results.append(compare(f"variables: {count}, main thread", samples, "cpu"))
    smallest, *_, largest = variables
    results.append(grown(f"growth from {smallest} to {largest} variables", variables[smallest], variables[largest]))
    for steps in (1, 10, 100) if quick else (1, 10, 100, 1000):
        results.append(compare(f"steps of an epoch: {steps}", point(steps=steps)))
        results.append(compare(f"steps of an epoch: {steps}, as it comes", point(steps=steps, as_it_comes=True)))
    return results


if __name__ == "__main__":
    m.main("scaling", "`fit` / a loop by hand, as work grows", run, __doc__)
