"""Models on meshes whose axes span real processes train as on one device."""

import json

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests import processes

TRAIN = """
import json
import keras_dist as kd
from tests.distribution.test_meshes_over_processes import losses

tensor_parallel = kd.LayoutMap(kd.DeviceMesh("data=1,model=4"))
tensor_parallel["hidden/kernel"] = (None, "model")
tensor_parallel["hidden/bias"] = ("model",)
tensor_parallel["last/kernel"] = ("model", None)
expected = json.loads(sys.argv[4])
for distribution in (kd.ModelParallel(tensor_parallel, "data"), kd.FullySharded(kd.DeviceMesh("data=4"))):
    found, kernel = losses(distribution)
    (shard,) = kernel.addressable_shards
    assert shard.data.size < kernel.size, distribution
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
mesh = kd.DeviceMesh("data=1,model=1", dcn_shape="data=2,model=2")
assert [device.process_index for device in mesh.backend_mesh.devices.flat] == [0, 1, 2, 3]
"""


def losses(distribution):
    """The losses of some epochs, and the kernel."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(16, 4)).astype("f4"), draws.normal(size=(16, 4)).astype("f4")
    with distribution.scope():
        kd.random.set_random_seed(1)
        model = kd.Sequential(
            [layers.Input((4,)), layers.Dense(8, "relu", name="hidden"), layers.Dense(4, name="last")]
        )
        model.compile("adam", "mse", steps_per_execution=1)
    history = model.fit(x, y, 8, 3, shuffle=False, verbose=0).history
    return history["loss"], model.get_layer("hidden").kernel.value


@pytest.mark.multiprocess
def test_model_axes_and_fully_sharded_variables_over_four_processes_train_as_one():
    expected, _ = losses(kd.DataParallel(devices=["cpu:0"]))
    processes.run(TRAIN, json.dumps(expected), processes=4, devices=1)
