"""`AutoParallel` in a job: all processes find one layout, also where their searches end at different points."""

import pytest

from tests import processes

PROGRAM = """
import keras_dist as kd

x = np.random.default_rng(0).normal(size=(16, 64)).astype("f4")


def mlp():
    return kd.Sequential([kd.Input((64,)), kd.layers.Dense(256, "relu", name="up"), kd.layers.Dense(64, name="down")])


# the first process tries the presets alone, the others try all
auto = kd.AutoParallel("data=2,model=2", time_limit_seconds=120 if process else 1e-6)
found = auto.search(mlp, (x, x), "adam", "mse")
assert found.best.rules in ({"batch": ("data", "model")}, {"batch": "data", "mlp": "model"}), found.best
assert found.is_complete == bool(process) and (len(found.candidates) > 4) == bool(process)

# and `fit` trains under what all have found
with kd.AutoParallel("data=2,model=2").scope():
    kd.random.set_random_seed(1)
    model = mlp()
model.compile("adam", "mse")
losses = model.fit(x, x, batch_size=16, epochs=3, verbose=0).history["loss"]
assert losses[-1] < losses[0], losses
assert "model" in model.state_plan.row("up/kernel").axes, model.state_plan.row("up/kernel")
"""


@pytest.mark.multiprocess
def test_all_processes_train_under_the_layout_of_the_first():
    processes.run(PROGRAM)
