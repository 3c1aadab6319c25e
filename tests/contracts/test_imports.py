"""What an import loads and starts, and what it does not."""

import pytest

from tests.contracts.processes import run_python
from tests.processes import environment

pytestmark = pytest.mark.multiprocess

LOADED = "print(*(name for name in {names!r} if name in sys.modules))"
FOREIGN = ("tensorflow", "torch", "keras")


def loaded(program: str, *names: str) -> list[str]:
    """Which of the modules `names` are there after `program`."""
    return run_python(f"import sys\n{program}\n{LOADED.format(names=names)}").split()


@pytest.mark.parametrize(
    "program", ["import keras_dist", "import keras_dist.config, keras_dist.errors, keras_dist.saving"]
)
def test_loads_no_jax(program):
    assert loaded(program, "jax", "jaxlib", "flax", "optax") == []


def test_models_and_layers_load_neither_the_planner_nor_pydantic():
    assert loaded("import keras_dist as kd; kd.Model; kd.layers", "keras_dist.planner", "pydantic") == []


WITHOUT_FCNTL = """
import os, sys, pathlib, tempfile
import flax.nnx, grain, optax, orbax.checkpoint  # which know what to do there
sys.modules["fcntl"] = None
del os.O_NOFOLLOW, os.O_DIRECTORY, os.O_NONBLOCK, os.register_at_fork, os.fork
import keras_dist as kd
for name in kd.__all__:
    getattr(kd, name)
folder = pathlib.Path(tempfile.mkdtemp())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)])
model.save(folder / "model")
model.save_weights(folder / "w.safetensors")
model.load_weights(folder / "w.safetensors")
with kd.checkpoint.CheckpointManager(model, folder / "states") as manager:
    manager.save()
    found = kd.checkpoint.examine(folder / "states")
    print(found.is_good, found.writer.is_alive)
print(kd.models.load_model(folder / "model").count_params(), sorted(path.name for path in folder.rglob(".*")))
"""


def test_works_without_what_windows_lacks():
    assert run_python(WITHOUT_FCNTL, XLA_FLAGS=environment()["XLA_FLAGS"]).splitlines() == ["True None", "8 []"]


WITHOUT_EXTRAS = """
import sys
for name in ("sklearn", "tensorflow_datasets", "array_record", "importlib_resources"):
    sys.modules[name] = None
import keras_dist as kd
mesh = kd.DeviceMesh((2,), ("data",), ["cpu:0", "cpu:1"])
rules = kd.LayoutMap(mesh)
rules["kernel"] = (None, "data")
for name in kd.__all__:
    getattr(kd, name)
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
kd.list_devices()
print(xla_bridge.backends_are_initialized())
import numpy as np
from keras_dist.data.adapters import source_of
for x in (np.ones(3), iter([np.ones(3)]), [np.ones(3)]):
    source_of(x)
model = kd.Sequential([kd.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
try:
    from keras_dist.datasets import digits
except ImportError as error:
    print(type(error).__name__, error.fix)
"""


def test_names_and_rules_start_no_device_and_nothing_needs_an_extra_or_a_library_that_holds_data():
    names = ("jax", "flax", *FOREIGN, "pandas", "scipy", "grain")  # the check itself sees jax
    program = f"{WITHOUT_EXTRAS}\n{LOADED.format(names=names)}"
    assert run_python(program, XLA_FLAGS=environment()["XLA_FLAGS"]).splitlines() == [
        "False",
        "True",
        "MissingExtraError pip install array_record importlib_resources scikit-learn tensorflow-datasets",
        "jax flax",
    ]
