"""Weights are read straight into their shards: no more memory than the weights and one of them."""

import json

import pytest

from tests import forks
from tests.soak import LARGE, crossed, often

PROGRAM = """
import json, pathlib, sys, threading, time
import keras_dist as kd
kd.use_cpu_devices(8)
import jax, jax.numpy as jnp

SIZE, LAYERS, STORED, IS_STACKED, MAX_GB = json.loads(sys.argv[1])
SHAPES = {"up": (SIZE, 4 * SIZE), "down": (4 * SIZE, SIZE)}

class Layers(kd.layers.Layer):
    def __init__(self, stack=(), **kwargs):
        super().__init__(**kwargs)
        self.stack = stack

    def build(self, input_shape):
        for name, shape in SHAPES.items():
            setattr(self, name, self.add_weight((*self.stack, *shape), name=name))

    def call(self, inputs):
        return inputs

class Highest:
    def __enter__(self):
        jax.block_until_ready(jax.jit(lambda: jnp.zeros(8))())
        self.before = self.highest = self.now()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.ended.set()
        self.thread.join()
        self.rise = self.highest - self.before

    def now(self):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

    def watch(self):
        while not self.ended.wait(0.001):
            self.highest = max(self.highest, self.now())

def network():
    layers = [Layers((LAYERS,), name="layers")]
    if not IS_STACKED:
        layers = [Layers(name=f"layers_{number}") for number in range(LAYERS)]
    return kd.Sequential([kd.Input((8,)), *layers])

stack = (None,) if IS_STACKED else ()
rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
rules[".*/up"], rules[".*/down"] = (*stack, "data", "model"), (*stack, "model", "data")
kd.set_distribution(kd.ModelParallel(rules))
names = {"layers_{}/(up|down)": r"model.layers.{}.mlp.\\1_proj.weight"}
weight_map = kd.interop.WeightMap(names, {".*": kd.interop.Linear()})
folder = pathlib.Path(sys.argv[2])
written = network()
written.get_weights()
with Highest() as save:
    written.save_weights(folder, weight_map=weight_map, dtype=STORED, max_shard_size=MAX_GB)
del written
with Highest() as load:
    model = network()
    model.load_weights(folder, weight_map=weight_map)
print(json.dumps({"save": save.rise, "load": load.rise, "files": len(list(folder.glob("*.safetensors")))}))
"""

SIZE = 2048 if LARGE else 1024
ONE = 16 * SIZE**2  # bytes of a weight of a layer in float32
pytestmark = [often, pytest.mark.multiprocess]


@pytest.mark.parametrize(
    ("stored", "is_stacked"), crossed(["float32", "float16", *["bfloat16"] * LARGE], [False, True])
)
def test_loading_takes_little_more_than_the_weights(stored, is_stacked, tmp_path):
    layers = 18 if is_stacked else 8  # shards of more than 32 MiB, or glibc keeps deleted ones
    total = 2 * layers * ONE
    most = None if stored == "float16" else total / 4 / 1024**3
    options = [SIZE, layers, stored, is_stacked, most]
    run = forks.python("-c", PROGRAM, json.dumps(options), str(tmp_path / "saved"))
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert (found["files"] > 1) is (most is not None)
    assert 0.8 * total <= found["load"] <= 1.15 * total + 2**25, "and compiled programs"
    assert found["save"] <= 3 * ONE, "one weight of a layer, and a small part of it in another form"
