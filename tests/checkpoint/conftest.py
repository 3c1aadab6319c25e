"""What the tests of checkpoints share: a model that is nothing but its arrays, whose states are quick to write."""

import contextlib
import threading

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager, Snapshot


class Held:
    """Arrays on a mesh of 2 x 4 devices, and a step."""

    def __init__(self, step=0, **arrays):
        self.step = step
        self.arrays = arrays or {"variables/d1/kernel": np.arange(32.0, dtype=np.float32).reshape(4, 8)}
        self.restored = []

    def at_rest(self):
        return contextlib.nullcontext()

    def snapshot(self):
        return snapshot_of(self.arrays, self.step)

    def restore(self, stored):
        self.restored.append(stored.step)


def snapshot_of(arrays, step=0, **documents):
    rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
    if any(name.endswith("d1/kernel") for name in arrays):
        rules[".*d1/kernel"] = (None, "model")
    planned = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in arrays.items()}
    plan = kd.ModelParallel(rules, batch_dim_name="data").plan(
        {name: like for name, like in planned.items() if not name.startswith("training/")}
    )
    return Snapshot(step, arrays, plan, {"model": {"seed": 0, "fits": 0}, **documents})


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "states"


@pytest.fixture
def write(directory):
    """Writes states of these steps."""

    def write(*steps, **arguments):
        held = Held()
        with CheckpointManager(held, directory, **{"keep": None, **arguments}) as manager:
            for held.step in steps:
                manager.save()
        return [directory / f"step_{step:08d}" for step in steps]

    return write


@pytest.fixture
def threads():
    """The threads that were started since the test began, and do not end."""
    before = set(threading.enumerate())

    def ends(thread):
        thread.join(20)
        return not thread.is_alive()

    return lambda: [one for one in threading.enumerate() if one not in before and not ends(one)]


def flip(path, offset=0):
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset % len(content)] ^= 1
    path.write_bytes(content)
