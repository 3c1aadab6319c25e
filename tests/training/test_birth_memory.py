"""Sharded at birth: no more memory than the sharded state and a few shards."""

import json

import pytest

from tests import forks
from tests.soak import LARGE, repeated

PROGRAM = """
import json, sys
import keras_dist as kd
kd.use_cpu_devices(8)
import jax
from flax import nnx

class Tall(nnx.Module):
    def __init__(self, rngs, size=int(sys.argv[1])):
        self.layers = nnx.List([nnx.Linear(size, size, use_bias=False, rngs=rngs) for _ in range(16)])

def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

rules = kd.LayoutMap(kd.DeviceMesh("data=1,model=8"))
rules["layers/.*/kernel"] = (None, "model")
kd.set_distribution(kd.ModelParallel(rules))
# A small model first: what compilers keep in memory is no matter of the weights' size.
kd.Model.from_nnx(lambda rngs: Tall(rngs, size=64), seed=0)
before = peak_bytes()
model = kd.Model.from_nnx(Tall, seed=0)
rise = peak_bytes() - before
model.compile("adam", "mse")
per_device = {}
for leaf in jax.tree.leaves(model._built.cell.state.slots):
    for shard in leaf.addressable_shards:
        per_device[shard.device.id] = per_device.get(shard.device.id, 0) + shard.data.nbytes
print(json.dumps({"rise": rise, "slots": per_device}))
"""

SIZE = 4096 if LARGE else 2048
BYTES = 16 * 4 * SIZE**2  # 1 GiB if `LARGE`


@pytest.fixture(scope="module")
def measured():
    run = forks.python("-c", PROGRAM, SIZE)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@repeated
@pytest.mark.multiprocess
def test_building_weights_adds_at_most_half_of_them_on_top(measured):
    assert BYTES <= measured["rise"] <= 1.5 * BYTES


@repeated
@pytest.mark.multiprocess
def test_optimizer_slots_are_sharded_as_the_weights(measured):
    ideal = 2 * BYTES / 8
    assert len(measured["slots"]) == 8
    assert all(abs(nbytes - ideal) <= 0.02 * ideal for nbytes in measured["slots"].values())
