import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DeviceError, MeshError

CPUS = [f"cpu:{index}" for index in range(8)]


@pytest.mark.parametrize(
    ("shape", "axis_names", "words"),
    [
        ((4,), "", "Shape and axis_names cannot be empty"),
        ((4,), None, "Shape and axis_names cannot be empty"),
        ((), (), "Shape and axis_names cannot be empty"),
        (None, ("data",), "Shape and axis_names cannot be empty"),
        ((4, 2), ["batch"], "Shape and axis_names should have same size"),
        ((4, 2), ["batch", "model"], "Shape does not match the number of devices"),
        ((4,), "data", "`axis_names` must be a sequence of names"),
        ((2, 2), ("data", "data"), "axis name 'data' appears more than once"),
        ((4,), (1,), "axis names must be printable strings .* not 1"),
        ((4.0,), ("data",), "sizes must be integers .* not 4.0"),
        ((True, 4), ("a", "b"), "sizes must be integers .* not True"),
        ((0,), ("data",), "sizes must be integers .* not 0"),
        ((-2,), ("data",), "sizes must be integers .* not -2"),
        ((-1, -1), ("a", "b"), "Shape does not match the number of devices"),
        ((3, -1), ("a", "b"), "Shape does not match the number of devices"),
        ({"data": 4}, ("data",), "`shape` and `axis_names` cannot be used together"),
    ],
)
def test_refuses_what_does_not_fit(shape: object, axis_names: object, words: str) -> None:
    with pytest.raises(MeshError, match=words):
        kd.DeviceMesh(shape, axis_names, CPUS[:4])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape", [{"data": 2, "model": 4}, "data=2,model=4", "data=2, model=-1", {"data": -1, "model": 4}]
)
def test_shapes_with_names(shape: object) -> None:
    assert kd.DeviceMesh(shape) == kd.DeviceMesh((2, 4), ("data", "model"))  # type: ignore[arg-type]


def test_equal_by_value() -> None:
    one, other = (kd.DeviceMesh((2, 4), ("data", "model")) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert {one: "found"}[other] == "found"


def test_names_and_jax_devices_make_equal_meshes() -> None:
    assert kd.DeviceMesh((8,), ("d",), jax.devices()) == kd.DeviceMesh((8,), ["d"], np.array(CPUS))


@pytest.mark.parametrize(
    "other",
    [
        kd.DeviceMesh((4, 2), ("data", "model")),
        kd.DeviceMesh((2, 4), ("data", "expert")),
        kd.DeviceMesh((2, 4), ("data", "model"), CPUS[::-1]),
    ],
    ids=["shape", "names", "order of devices"],
)
def test_differs_by_value(mesh: kd.DeviceMesh, other: kd.DeviceMesh) -> None:
    assert mesh != other


def test_backend_mesh_is_that_of_jax() -> None:
    backend_mesh = kd.DeviceMesh((4, 2), ["batch", "model"], CPUS[::-1]).backend_mesh
    assert isinstance(backend_mesh, jax.sharding.Mesh)
    assert backend_mesh.devices.shape == (4, 2)
    assert backend_mesh.axis_names == ("batch", "model")
    assert list(backend_mesh.devices.flatten()) == jax.devices()[::-1]
    assert set(backend_mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_a_device_that_does_not_exist_is_found_at_plan() -> None:
    distribution = kd.DataParallel(devices=["cpu:0", "cpu:77"])
    with pytest.raises(DeviceError, match="'cpu:77'"):
        distribution.plan({"kernel": jax.ShapeDtypeStruct((4,), "float32")})


@pytest.mark.parametrize("devices", [["cpu:0", "cpu:0"], ["cpu:0", "CPU:0"], ["cpu", "cpu:0"]])
def test_a_device_may_appear_once(devices: list[str]) -> None:
    with pytest.raises(MeshError, match="device 'cpu:0' appears more than once"):
        kd.DeviceMesh((2,), ("data",), devices)


def test_devices_cannot_be_changed(mesh: kd.DeviceMesh) -> None:
    with pytest.raises(ValueError, match="read-only"):
        mesh.devices[0, 0] = "cpu:7"


def test_a_later_change_of_the_callers_array_changes_nothing() -> None:
    devices = np.array(CPUS)
    mesh = kd.DeviceMesh((8,), ("data",), devices)
    devices[0] = "cpu:7"
    assert mesh.devices[0] == "cpu:0"


@pytest.mark.parametrize(("axes", "shards"), [(None, 1), ("data", 2), (("data", "model"), 8)])
def test_axis_size_is_the_number_of_shards(mesh: kd.DeviceMesh, axes: object, shards: int) -> None:
    assert mesh.axis_size(axes) == shards  # type: ignore[arg-type]


def test_repr(mesh: kd.DeviceMesh) -> None:
    assert repr(mesh) == "<DeviceMesh shape=(2, 4), axis_names=('data', 'model')>"
    assert mesh.describe() == "{data: 2, model: 4}"


def test_a_mesh_of_too_many_axes_is_refused() -> None:
    largest = kd.DeviceMesh([8, *[1] * 31], [f"a{axis}" for axis in range(32)])
    placed = kd.FullySharded(largest).plan({"kernel": np.zeros(8)}).place({"kernel": np.zeros(8)})
    assert placed["kernel"].sharding.shard_shape((8,)) == (1,)
    with pytest.raises(MeshError, match="at most 32 axes") as caught:
        kd.DeviceMesh([8, *[1] * 99], [f"a{axis}" for axis in range(100)])
    assert "at most 32 axes" in str(caught.value)
    assert "axes of size 1" in str(caught.value)
