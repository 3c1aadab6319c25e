"""Meshes of several slices or processes."""

import copy
import pickle
import warnings

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

import keras_dist as kd
from keras_dist.distribution import arrangement
from keras_dist.errors import LayoutWarning, MeshError
from tests.jobs import CONTIGUOUS, INTERLEAVED, be

UNEQUAL = [0, 0, 0, 1, 1, 1, 1, 1]


@pytest.fixture
def job(monkeypatch):
    """Let the devices belong to these processes; each test has its warnings anew."""
    arrangement._warn_once.cache_clear()
    yield lambda processes: be(monkeypatch, processes, 0)
    arrangement._warn_once.cache_clear()


def ids(mesh):
    return [int(name.removeprefix("cpu:")) for name in mesh.devices.flatten()]


def places(mesh, processes):
    """The process of each device of the mesh."""
    return np.array([processes[one] for one in ids(mesh)]).reshape(mesh.shape)


@pytest.mark.parametrize("processes", [CONTIGUOUS[4], INTERLEAVED[4], [3, 3, 0, 0, 1, 1, 2, 2]], ids=str)
@pytest.mark.parametrize(
    "shape", ["data=4,model=2", "data=2,fsdp=2,model=2", "data=8,model=1", "data=1,fsdp=4,model=2"]
)
def test_inner_axes_stay_inside_a_process(job, shape, processes):
    job(processes)
    mesh = kd.DeviceMesh(shape)
    found = places(mesh, processes).reshape(4, -1)
    assert (found == found[:, :1]).all()
    assert found[:, 0].tolist() == [0, 1, 2, 3]  # the order of rows is that of processes
    assert sorted(ids(mesh)) == [*range(8)]


def test_model_axes_may_span_processes(job):
    job(CONTIGUOUS[8])  # of one device each
    for shape in ("data=1,model=8", "data=2,model=4", "model=8"):
        assert ids(kd.DeviceMesh(shape)) == [*range(8)]
    job(CONTIGUOUS[4])
    assert ids(kd.DeviceMesh("data=1,model=8")) == [*range(8)]
    assert ids(kd.DeviceMesh("data=8")) == [*range(8)]


def test_processes_of_unequal_numbers_of_devices_come_one_after_the_other(job):
    job([1, 1, 1, 0, 0, 0, 0, 0])
    assert ids(kd.DeviceMesh("data=8")) == [3, 4, 5, 6, 7, 0, 1, 2]


@pytest.mark.parametrize("error", [NotImplementedError, AssertionError])
def test_devices_that_jax_cannot_place_stay_in_their_order(job, monkeypatch, error):
    def refuse(*args, **options):
        raise error("no place along the wires")

    monkeypatch.setattr(mesh_utils, "create_device_mesh", refuse)
    job(INTERLEAVED[2])
    assert ids(kd.DeviceMesh("data=4,model=2")) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_devices_that_are_given_stay_in_their_order(job):
    job(INTERLEAVED[4])
    order = [6, 2, 4, 0, 1, 3, 5, 7]
    mesh = kd.DeviceMesh((8,), ("data",), [f"cpu:{number}" for number in order])
    assert ids(mesh) == order


class OfSlice:
    """A device, with the slice that TPUs and GPUs tell."""

    platform, device_kind = "tpu of nobody", "none"

    def __init__(self, device, number):
        self.device, self.slice_index, self.process_index = device, number, device.id

    def __repr__(self):
        return f"cpu:{self.device.id}"


@pytest.mark.parametrize(("shape", "spans"), [((2, 2), (2, 1)), ((1, 4), (2, 1)), ((4, 1), (1, 2)), ((2, 2), (1, 2))])
def test_dcn_shape_means_what_it_does_in_jax(shape, spans):
    devices = [OfSlice(device, number) for device, number in zip(jax.devices(), [1, 0, 0, 1, 0, 1, 1, 0], strict=True)]
    groups = arrangement.groups_of(devices)
    assert [[one.slice_index for one in group] for group in groups] == [[0] * 4, [1] * 4]
    found = arrangement.arranged(groups, shape, spans)
    expected = mesh_utils.create_hybrid_device_mesh(shape, spans, devices)
    assert found.shape == expected.shape
    assert (found == expected).all()


@pytest.mark.parametrize("shape", [(1, 2), "data=1,model=2", {"data": 1, "model": 2}, "data=-1,model=2"])
@pytest.mark.parametrize("spans", [(4, 1), "data=4", {"data": 4}, "data=-1", {"model": 1, "data": 4}, (-1, 1)])
def test_sizes_of_a_mesh_of_processes(job, shape, spans):
    job(INTERLEAVED[4])
    mesh = kd.DeviceMesh(shape, ("data", "model") if isinstance(shape, tuple) else None, dcn_shape=spans)
    assert (mesh.shape, mesh.dcn_shape) == ((4, 2), (4, 1))
    assert ids(mesh) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert mesh == kd.DeviceMesh("data=4,model=2")  # the same devices in the same places
    assert repr(mesh) == f"<DeviceMesh shape=(4, 2), axis_names={mesh.axis_names}, dcn_shape=(4, 1)>"


@pytest.mark.parametrize(
    ("processes", "spans", "words"),
    [
        (CONTIGUOUS[4], "data=2", "`shape` and `dcn_shape` do not match the devices"),
        (CONTIGUOUS[4], "data=-1,model=3", "`shape` and `dcn_shape` do not match the devices"),
        (UNEQUAL, "data=2", "`shape` and `dcn_shape` do not match the devices"),
        (CONTIGUOUS[4], "date=4", "`dcn_shape` must have a size for each axis"),
        (CONTIGUOUS[4], 4, "`dcn_shape` must have a size for each axis"),
        (CONTIGUOUS[4], {1, 4}, "`dcn_shape` must have a size for each axis"),
        (CONTIGUOUS[4], "data", "has no '='"),
        (CONTIGUOUS[4], (4, 0), "`dcn_shape` must be integers"),
        (CONTIGUOUS[4], (True, 4), "`dcn_shape` must be integers"),
    ],
    ids=str,
)  # fmt: skip
def test_refuses_what_does_not_fit(job, processes, spans, words):
    job(processes)
    with pytest.raises(MeshError, match=words) as caught:
        kd.DeviceMesh((1, 2), ("data", "model"), dcn_shape=spans)
    assert caught.value.given and caught.value.fix


def crossing(*args, **options):
    with pytest.warns(LayoutWarning) as caught:
        mesh = kd.DeviceMesh(*args, **options)
    (warning,) = caught
    assert warning.filename == __file__
    return mesh, str(warning.message)


def test_an_inner_axis_that_crosses_processes_is_told_the_ways_out(job):
    job(CONTIGUOUS[4])
    mesh, text = crossing("data=2,model=4")
    assert "axis 'model' of DeviceMesh(\"data=2,model=4\") crosses from process to process, each of 2 devices" in text
    assert 'To keep it inside one process: DeviceMesh("data=4,model=2").' in text
    assert 'If it is meant: DeviceMesh("data=1,model=2", dcn_shape="data=2,model=2").' in text
    with warnings.catch_warnings(action="error"):
        for way_out in (kd.DeviceMesh("data=4,model=2"), kd.DeviceMesh("data=1,model=2", dcn_shape="data=2,model=2")):
            assert way_out.size == 8
        assert kd.DeviceMesh("data=1,model=2", dcn_shape="data=2,model=2") == mesh
        assert kd.DeviceMesh("data=2,model=4") == mesh  # once


def test_an_order_of_devices_that_crosses_processes_is_told_another(job):
    job(CONTIGUOUS[2])
    every_other = kd.list_devices()[::2] + kd.list_devices()[1::2]
    _, text = crossing({"data": 2, "expert": 2, "model": 2}, devices=every_other)
    assert "axis 'expert' of" in text  # its devices are (0, 4), (2, 6), (1, 5), (3, 7)
    assert "To keep it inside one process, leave out `devices`, or list them process by process." in text
    assert kd.DeviceMesh({"data": 2, "expert": 2, "model": 2}).size == 8
    job(INTERLEAVED[2])
    _, text = crossing("data=4,model=2", devices=kd.list_devices())
    assert "leave out `devices`" in text


def test_ways_out_of_meshes_of_many_axes(job):
    job(CONTIGUOUS[4])
    _, text = crossing("a=1,b=2,c=1,d=4")
    assert 'To keep it inside one process: DeviceMesh("a=1,b=4,c=1,d=2").' in text
    text = arrangement._shapes({"a": 2, "b": 2, "c": 4}, "c", 2, "slice")
    assert "To keep it inside one slice, give it a size that divides 2." in text
    assert 'If it is meant: DeviceMesh("a=1,b=1,c=2", dcn_shape="a=2,b=2,c=2").' in text


def test_copies_and_pickles_keep_what_was_told(job):
    job(CONTIGUOUS[4])
    mesh = kd.DeviceMesh("data=1,model=2", dcn_shape="data=2,model=2")
    assert mesh.backend_mesh.shape == {"data": 2, "model": 4}
    with warnings.catch_warnings(action="error"):
        for one in (pickle.loads(pickle.dumps(mesh)), copy.copy(mesh), copy.deepcopy(mesh)):
            assert (one, one.dcn_shape, repr(one)) == (mesh, (2, 2), repr(mesh))
            assert one.backend_mesh == mesh.backend_mesh
            with pytest.raises(ValueError, match="read-only"):
                one.devices[0, 0] = "cpu:7"
    job(CONTIGUOUS[1])
    assert pickle.loads(pickle.dumps(mesh)) == mesh  # also where the processes are others


def test_of_a_config_file(job, tmp_path):
    job(CONTIGUOUS[4])
    file = tmp_path / "run.toml"
    for text in ('shape = "data=1,model=2"\ndcn_shape = "data=4"', "shape = {data=1, model=2}\ndcn_shape = {data=-1}"):
        file.write_text(f"[mesh]\n{text}\n")
        with pytest.warns(LayoutWarning, match="1D"):
            mesh = kd.distribution_from_config(file).device_mesh
        assert (mesh.shape, mesh.dcn_shape) == ((4, 2), (4, 1))
