import pytest

import keras_dist as kd
from keras_dist.errors import DistributionError, LayoutWarning
from tests.distribution.shapes import axes_of, f32, variable


@pytest.fixture
def flat() -> kd.DeviceMesh:
    return kd.DeviceMesh((8,), ["data"])


def test_with_devices() -> None:
    for devices in (None, [f"cpu:{index}" for index in range(8)]):
        assert kd.DataParallel(devices=devices).device_mesh == kd.DeviceMesh((8,), ["batch"])


def test_devices_are_given_once(flat: kd.DeviceMesh) -> None:
    with pytest.raises(DistributionError, match="`device_mesh` and `devices` cannot be used together"):
        kd.DataParallel(flat, ["cpu:0"])


def test_a_mesh_is_a_mesh() -> None:
    with pytest.raises(DistributionError, match=r"`device_mesh` must be a keras_dist.DeviceMesh"):
        kd.DataParallel(device_mesh="data=8")  # type: ignore[arg-type]


def test_a_mesh_of_two_axes_warns_and_takes_the_first(mesh: kd.DeviceMesh) -> None:
    with pytest.warns(LayoutWarning, match="Expect the input mesh to be 1D.*The first axis, 'data', will be used"):
        distribution = kd.DataParallel(mesh)
    assert distribution.get_data_layout((8, 3)).axes == ("data", None)
    assert distribution.num_model_replicas == 8


def test_a_variable_keeps_a_layout_of_its_own(flat: kd.DeviceMesh) -> None:
    own = kd.TensorLayout(["x"], kd.DeviceMesh((8,), ["x"]))
    for distribution in (kd.DataParallel(flat), kd.DataParallel(flat, shard_optimizer=True)):
        assert distribution.get_variable_layout(variable("kernel", 8, layout=own)) is own
        assert distribution.get_slot_layout(variable("kernel", 8, layout=own)) is own


def test_shard_optimizer_cuts_the_slots_and_not_the_weights(flat: kd.DeviceMesh) -> None:
    tree = {"kernel": f32(16, 64), "tall": f32(64, 3), "square": f32(8, 8), "odd": f32(3, 5), "scale": f32()}
    plan = kd.DataParallel(flat, shard_optimizer=True).plan(tree)
    slots = plan.follow(tree)
    assert set(axes_of(plan).values()) == {(None, None), ()}
    assert axes_of(slots) == {
        "kernel": (None, "data"),
        "tall": ("data", None),
        "square": ("data", None),
        "odd": (None, None),
        "scale": (),
    }
    assert slots.row("kernel").rule == "follows kernel, sharded over 'data'"
    assert slots.row("kernel").nbytes_per_device == slots.row("kernel").nbytes // 8


def test_shard_optimizer_leaves_gradients_as_the_weights(flat: kd.DeviceMesh) -> None:
    tree = {"kernel": f32(16, 64)}
    plan = kd.DataParallel(flat, shard_optimizer=True).plan(tree)
    assert axes_of(plan.follow(tree, role="gradient")) == {"kernel": (None, None)}


def test_without_shard_optimizer_slots_are_replicated(flat: kd.DeviceMesh) -> None:
    tree = {"kernel": f32(16, 64)}
    assert axes_of(kd.DataParallel(flat).plan(tree).follow(tree)) == {"kernel": (None, None)}
