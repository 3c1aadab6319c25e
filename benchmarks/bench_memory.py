"""Memory: the peak of a training process against the loop by hand's, and what the state takes on a device.

Each peak is that of a fresh process, which trains for some steps; the two take turns. State is counted as the bytes of
all live arrays on the first device after training, against the variables and slots alone, divided as they should be.
"""

from __future__ import annotations

import gc
import resource
from typing import Any

import jax

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import BareLoop, Network, images, make_model

BATCH_SIZE, STEPS = 16, 8
DEVICES = 8
LARGE = (4096, 4096)
PEAK_AIM, STATE_AIM = 1.05, 1.02


def measure(what: str, **arguments: Any) -> Any:
    """What this process is there for."""
    return {"peak": peak_bytes, "state": state_bytes}[what](**arguments)


def peak_bytes(by_hand: bool, hidden: list[int]) -> int:
    """The most memory that this process had after training the network on one device."""
    network = Network(tuple(hidden))
    x, y = images(BATCH_SIZE * STEPS)
    if by_hand:
        BareLoop(network, 1, x, y, BATCH_SIZE).run()
    else:
        make_model(kd, network).fit(x, y, batch_size=BATCH_SIZE, verbose=0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def state_bytes(strategy: str, hidden: list[int]) -> tuple[int, float]:
    """What is on the first of eight devices after training, and what has to be."""
    kd.use_cpu_devices(DEVICES)
    mesh = kd.DeviceMesh((DEVICES,), ("batch",))
    kd.set_distribution({"DataParallel": kd.DataParallel, "FullySharded": kd.FullySharded}[strategy](device_mesh=mesh))
    model = make_model(kd, Network(tuple(hidden)), steps_per_execution=1)
    x, y = images(BATCH_SIZE * STEPS)
    model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)
    gc.collect()
    first = jax.devices()[0]
    found = sum(
        shard.data.nbytes for array in jax.live_arrays() for shard in array.addressable_shards if shard.device == first
    )
    weights = sum(array.nbytes for array in model.get_weights())
    ideal = 2 * weights / (DEVICES if strategy == "FullySharded" else 1)  # RMSprop has one slot for each weight
    return found, ideal


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    results = []
    for name, hidden in (("guide's MLP", Network().hidden), ("80 MB of weights", LARGE)):
        peaks: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(1 if quick else 5):
            for by_hand, bytes_ in peaks.items():
                bytes_.append(m.in_process(__spec__.name, what="peak", by_hand=by_hand, hidden=hidden))
        results.append(m.result(f"peak, {name}", peaks[False], peaks[True], "MB", 1e6, PEAK_AIM))
    for strategy in ("DataParallel", "FullySharded"):
        found, ideal = m.in_process(__spec__.name, what="state", strategy=strategy, hidden=LARGE)
        results.append(m.result(f"state a device, {strategy}", [found], [ideal], "MB", 1e6, STATE_AIM))
    return results


if __name__ == "__main__":
    m.main("memory", "memory / a loop by hand's", run, __doc__)
