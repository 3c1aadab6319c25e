"""`Mesh` and `Layout` have the names and the text of DTensor, and are kinds of `DeviceMesh` and `TensorLayout`."""

import pickle

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.errors import LayoutError, MeshError
from tests import strategies

DEVICES = ",".join(f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(8))
NUMBERS = "0,1,2,3,4,5,6,7"
MESH = f"mine|x=2,y=4|{NUMBERS}|{NUMBERS}|{DEVICES}"
U = dtensor.UNSHARDED


@pytest.fixture(scope="module")
def mesh():
    return dtensor.Mesh(["x", "y"], np.arange(8).reshape(2, 4), mesh_name="mine")


def test_a_mesh_has_the_names_of_dtensor(mesh):
    assert (mesh.name, mesh.size, mesh.dim_names, mesh.shape(), mesh.strides) == ("mine", 8, ["x", "y"], [2, 4], [4, 1])
    assert (mesh.dim_size("y"), mesh["x"], "x" in mesh, mesh.contains_dim("z")) == (4, ("x", 2), True, False)
    assert mesh["x"].name == "x"
    assert (mesh.device_type(), mesh.is_remote(), mesh.is_single_device()) == ("CPU", False, False)
    assert mesh.local_device_ids() == list(range(8))
    assert mesh.local_devices() == mesh.global_devices() == DEVICES.split(",")
    assert mesh.num_local_devices() == 8
    assert mesh.min_global_device_id() == 0
    assert mesh.global_device_ids().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.coords(5).tolist() == [1, 1]
    assert mesh.unravel_index()[5] == mesh.local_device_locations()[5] == {"x": 1, "y": 1}


# as TensorFlow 2.15 prints them
@pytest.mark.parametrize(
    ("specs", "text", "shards", "sixth"),
    [
        ([], "sharding_specs: mesh:", [], ()),
        (["y", U], "sharding_specs:y,unsharded, mesh:", [4, 1], (1, 0)),
        ([U, U, "x"], "sharding_specs:unsharded,unsharded,x, mesh:", [1, 1, 2], (0, 0, 1)),
    ],
)
def test_a_layout_prints_as_that_of_dtensor(mesh, specs, text, shards, sixth):
    layout = dtensor.Layout(specs, mesh)
    assert str(layout) == repr(layout) == f"Layout.from_string({text}{MESH})"
    assert dtensor.Layout.from_string(layout.to_string()) == layout
    assert dtensor.Layout.from_string(layout.to_string()).mesh.name == "mine"
    assert (layout.shape, layout.rank, layout.sharding_specs) == (shards, len(specs), specs)
    assert [layout.num_shards(dim) for dim in range(layout.rank)] == shards
    assert layout.offset_to_shard()[5] == sixth
    assert layout.is_fully_replicated() is not any(spec != U for spec in specs)


def test_layouts_are_made_and_changed(mesh):
    batch = dtensor.Layout.batch_sharded(mesh, "x", rank=3)
    assert batch.sharding_specs == ["x", U, U]
    assert dtensor.Layout.batch_sharded(mesh, "x", rank=2, axis=1) == dtensor.Layout.inner_sharded(mesh, "x", 2)
    assert batch.delete([0]) == batch.delete([0]) == dtensor.Layout.replicated(mesh, rank=2)
    assert batch.delete(1).sharding_specs == ["x", U]
    assert batch.is_batch_parallel()
    assert not batch.delete(0).is_batch_parallel()
    assert dtensor.Layout(["x", "y"], mesh).offset_tuple_to_global_index((1, 2)) == 6
    assert dtensor.Layout.from_device("CPU:1").mesh.local_devices() == ["/job:localhost/replica:0/task:0/device:CPU:1"]


@hypothesis.given(st.data(), strategies.meshes())
def test_text_keeps_meshes_and_layouts(data, mesh):
    layout = dtensor.Layout(data.draw(strategies.axes_for(mesh, data.draw(st.integers(0, 3)))), mesh)
    assert dtensor.Layout.from_string(layout.to_string()) == layout
    assert dtensor.Mesh.from_string(layout.mesh.to_string()) == layout.mesh == mesh


def test_they_count_as_the_classes_of_distribution(mesh):
    plain = kd.DeviceMesh((2, 4), ("x", "y"))
    assert isinstance(mesh, kd.DeviceMesh)
    assert mesh == plain == dtensor.Mesh.from_device_mesh(plain)
    assert mesh.shape == plain.shape
    layout = dtensor.Layout([U, "y"], mesh)
    theirs = kd.TensorLayout((None, "y"), plain)
    assert layout == theirs == dtensor.Layout.from_tensor_layout(theirs)
    assert hash(layout) == hash(theirs)
    rules = kd.LayoutMap(mesh)
    rules["kernel"] = layout
    assert rules["kernel"] == theirs
    array = kd.distribution.distribute_tensor(np.zeros((3, 8)), layout)
    assert array.sharding == theirs.backend_layout
    assert dtensor.Layout([("x", "y")], plain).shape == [8]
    assert pickle.loads(pickle.dumps(mesh)).name == "mine"


def test_a_mesh_may_list_its_devices():
    mesh = dtensor.Mesh(["x"], np.arange(2), [0, 1], ["CPU:3", "CPU:1"])
    assert [device.rpartition("/")[2] for device in mesh.local_devices()] == ["device:CPU:3", "device:CPU:1"]
    assert dtensor.Mesh.from_string(mesh.to_string()) == mesh


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda mesh: dtensor.Layout(["z"], mesh), LayoutError, "'z'"),
        (lambda mesh: dtensor.Layout(["x", "x"], mesh), LayoutError, "more than one dim"),
        (lambda mesh: dtensor.Layout("x", mesh), LayoutError, "must be a sequence"),
        (lambda mesh: dtensor.Layout(["x"], "mesh"), LayoutError, "`mesh`"),
        (lambda mesh: dtensor.Layout.batch_sharded(mesh, "x", rank=2, axis=5), LayoutError, "`axis`"),
        (lambda mesh: dtensor.Layout.replicated(mesh, rank=-1), LayoutError, "`rank`"),
        (lambda mesh: dtensor.Layout(["x"], mesh).delete([1]), LayoutError, "`dims`"),
        (lambda mesh: dtensor.Layout.from_tensor_layout(kd.TensorLayout(("x",))), LayoutError, "a layout with a mesh"),
        (lambda mesh: dtensor.Layout.from_string("sharding_specs:x"), LayoutError, "`layout_str`"),
        (lambda mesh: dtensor.Layout.from_string("x" * 2**21), LayoutError, "characters"),
        (lambda mesh: dtensor.Mesh.from_string("|x=two|0|0|CPU:0"), MeshError, "`mesh_str`"),
        (lambda mesh: dtensor.Mesh.from_string("|x=1,x=1|0|0|CPU:0"), MeshError, "`mesh_str`"),
        (lambda mesh: dtensor.Mesh(["x"], np.array([0, 2])), MeshError, "`global_device_ids`"),
        (lambda mesh: dtensor.Mesh(["x"], np.arange(9)), MeshError, "`global_device_ids`"),
        (lambda mesh: dtensor.Mesh(["x"], np.arange(2), [5]), MeshError, "`local_device_ids`"),
        (lambda mesh: mesh.dim_size("z"), MeshError, "'z'"),
    ],
)
def test_wrong_arguments_are_refused(mesh, make, error, message):
    with pytest.raises(error, match=message) as raised:
        make(mesh)
    assert raised.value.given and raised.value.fix
