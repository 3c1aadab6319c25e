"""Meshes, layouts and layout maps of Keras, as its users and KerasHub have them."""

import keras
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DistributionError, LayoutError

AXES = ("data", "model")
DEVICES = [f"cpu:{index}" for index in range(8)]
TREE = {"d1": {"kernel": np.zeros((16, 8), np.float32)}, "d2": {"kernel": np.zeros((8, 4), np.float32)}}
OURS = kd.DeviceMesh((2, 4), AXES, DEVICES)


@pytest.fixture
def mesh():
    return keras.distribution.DeviceMesh((2, 4), AXES, devices=np.array(DEVICES))


def rules_of_keras(mesh):
    """A layout map as `get_layout_map` of KerasHub's backbones makes it, with a layout that has no mesh yet."""
    rules = keras.distribution.LayoutMap(mesh)
    rules["d1.*kernel"] = ("data", "model")
    rules["d2/kernel"] = keras.distribution.TensorLayout(("model", None))
    return rules


def test_strategies_take_meshes_and_layout_maps_of_keras(mesh):
    for distribution in (
        kd.ModelParallel(rules_of_keras(mesh)),
        kd.ModelParallel(layout_map=rules_of_keras(mesh), batch_dim_name="data", device_mesh=mesh),
        kd.FullySharded(mesh, "data", rules_of_keras(mesh)),
    ):
        assert distribution.device_mesh == OURS
        rows = [distribution.plan(TREE).row(path) for path in ("d1/kernel", "d2/kernel")]
        assert rows[0].axes == ("data", "model") and rows[1].axes[0] == "model"
        assert [row.rule.partition(",")[0] for row in rows] == ["d1.*kernel", "d2/kernel"]
    flat = keras.distribution.DeviceMesh((8,), ("batch",), devices=np.array(DEVICES))
    for strategy in (kd.DataParallel, kd.FullySharded, kd.AutoParallel):
        assert strategy(flat).device_mesh == kd.DeviceMesh((8,), ("batch",), DEVICES)


def test_rules_and_layouts_take_objects_of_keras(mesh):
    rules = kd.LayoutMap(mesh)
    rules["a"] = keras.distribution.TensorLayout(("model", None), mesh)
    rules["b"] = keras.distribution.TensorLayout((None,))
    assert rules["a"] == kd.TensorLayout(("model", None), OURS) == kd.TensorLayout(("model", None), mesh)
    assert rules["b"].device_mesh == OURS
    placed = kd.distribution.distribute_tensor(np.zeros((8, 2)), keras.distribution.TensorLayout(("data", None), mesh))
    assert placed.sharding.shard_shape((8, 2)) == (4, 2)


def test_layouts_of_weights_may_be_of_keras(mesh):
    layout = keras.distribution.TensorLayout((None, "model"), mesh)
    dense = kd.layers.Dense(8, kernel_layout=layout)
    model = kd.Sequential([kd.Input((4,)), dense])  # lives on the mesh of the layout
    assert model.layout_plan.row("dense/kernel").axes == (None, "model")
    assert model.layers[0].kernel.layout.device_mesh == OURS


@pytest.mark.parametrize(
    ("value", "way"),
    {
        lambda mesh: keras.distribution.ModelParallel(layout_map=rules_of_keras(mesh)): "ModelParallel(layout_map",
        lambda mesh: keras.distribution.DataParallel(devices=DEVICES): "DataParallel(device_mesh",
        rules_of_keras: "ModelParallel(layout_map",
        lambda mesh: mesh: "DataParallel(device_mesh",
        lambda mesh: OURS: "DataParallel(device_mesh",
        lambda mesh: kd.LayoutMap(OURS): "ModelParallel(layout_map",
    }.items(),
)
def test_what_is_to_be_made_of_a_distribution_of_keras_is_told(value, way, mesh):
    with pytest.raises(DistributionError, match="`value` must be a DataParallel") as caught:
        kd.set_distribution(value(mesh))
    assert f"make keras_dist.{way}" in caught.value.fix


def test_a_layout_of_keras_on_another_mesh_is_refused(mesh):
    other = keras.distribution.DeviceMesh((8,), ("model",), devices=np.array(DEVICES))
    with pytest.raises(LayoutError, match="belongs to a different mesh"):
        kd.LayoutMap(mesh)["a"] = keras.distribution.TensorLayout(("model", None), other)
