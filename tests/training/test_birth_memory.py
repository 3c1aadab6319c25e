"""Sharded at birth: no more memory than the sharded state and a few shards."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from tests import forks
from tests.soak import LARGE

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
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def measured():
    run = forks.python("-c", PROGRAM, SIZE)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.multiprocess
def test_building_weights_adds_at_most_half_of_them_on_top(measured):
    assert BYTES <= measured["rise"] <= 1.5 * BYTES


@pytest.mark.multiprocess
def test_optimizer_slots_are_sharded_as_the_weights(measured):
    ideal = 2 * BYTES / 8
    assert len(measured["slots"]) == 8
    assert all(abs(nbytes - ideal) <= 0.02 * ideal for nbytes in measured["slots"].values())


@pytest.mark.slow
def test_compiled_init_needs_the_sharded_state_and_four_shards():
    rules = kd.LayoutMap(kd.DeviceMesh("data=1,model=8"))
    rules["w.*"] = (None, "model")

    def init(key):
        names = [f"w{i}" for i in range(16)]
        keys = jax.random.split(key, 16)
        return {n: jax.nn.initializers.lecun_normal()(k, (1024, 2048)) for n, k in zip(names, keys, strict=True)}

    plan = kd.ModelParallel(rules).plan(jax.eval_shape(init, jax.random.key(0)))
    programs = plan.compile_init(init, jax.random.key(0)).programs
    analyses = [program.memory_analysis() for program in programs]
    largest_shard = 1024 * 2048 * 4 // 8
    assert sum(a.output_size_in_bytes for a in analyses) == pytest.approx(plan.nbytes_per_device, rel=0.01)
    most = plan.nbytes_per_device + 4 * largest_shard
    assert sum(a.output_size_in_bytes for a in analyses) + max(a.temp_size_in_bytes for a in analyses) <= most
    whole = plan.nbytes // 16
    assert max(a.temp_size_in_bytes for a in analyses) < whole


def test_birth_gives_the_values_of_an_unsharded_birth():
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["kernel"] = ("data", "model")

    def init(key):
        return {"kernel": jax.random.normal(key, (64, 32)), "bias": jnp.ones(32)}

    key = jax.random.key(3)
    sharded = kd.ModelParallel(rules).plan(jax.eval_shape(init, key)).init(init, key)
    assert sharded["kernel"].sharding.shard_shape((64, 32)) == (32, 8)
    np.testing.assert_array_equal(sharded["kernel"], jax.jit(init)(key)["kernel"])
