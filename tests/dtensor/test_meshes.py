"""Meshes, and the processes of the job under DTensor's names."""

import jax
import pytest

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.errors import ClusterError, DeviceError, MeshError


def test_by_default_one_dim_has_all_devices_of_this_process():
    mesh = dtensor.create_mesh()
    assert (mesh.dim_names, mesh.shape(), mesh.name) == (["x"], [8], "")
    assert list(mesh.backend_mesh.devices) == jax.local_devices()


@pytest.mark.parametrize(
    "devices",
    [
        ["CPU:3", "CPU:2"],
        ["/device:CPU:3", "/device:CPU:2"],
        [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in (3, 2)],
        pytest.param(lambda: jax.devices()[3:1:-1], id="objects"),
    ],
)
def test_devices_in_any_form_and_order(devices):
    mesh = dtensor.create_mesh([("batch", 2)], devices=devices() if callable(devices) else devices)
    assert [device.id for device in mesh.backend_mesh.devices] == [3, 2]
    assert mesh == kd.DeviceMesh((2,), ("batch",), ["cpu:3", "cpu:2"])


@pytest.mark.parametrize("dims", [{"a": 2, "b": 4}, [("a", 2), ("b", 4)], [("a", -1), ("b", 4)], (["a", 2], ["b", -1])])
def test_dims_in_any_form(dims):
    mesh = dtensor.create_mesh(dims, mesh_name="train", device_type="CPU")
    assert (mesh.dim_names, mesh.shape(), mesh.name) == (["a", "b"], [2, 4], "train")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"mesh_dims": [("a", 3)]}, MeshError, "Shape does not match the number of devices"),
        ({"mesh_dims": [("a", 2)], "devices": ["CPU:0", "CPU:99"]}, DeviceError, "Device not found: 'cpu:99'"),
        ({"devices": ["/job:worker/replica:0/task:3/device:CPU:0"]}, DeviceError, "`device` must be"),
        ({"mesh_dims": [("a", 8)], "device_type": "TPU"}, DeviceError, "no 'TPU' devices"),
        ({"mesh_dims": [("a", 1)], "devices": ["CPU:0"], "device_type": "GPU"}, MeshError, "`device_type`"),
        ({"mesh_dims": [("a", 2), ("a", 4)]}, MeshError, "'a' appears more than once|twice"),
        ({"mesh_dims": [("a", 2)], "devices": ["CPU:0", "CPU:0"]}, MeshError, "twice|more than once"),
        ({"mesh_dims": "a=8"}, MeshError, "`mesh_dims`"),
        ({"mesh_dims": [("a", 8)], "devices": "train"}, MeshError, "`devices`"),
        ({"mesh_dims": [("a", 8)], "mesh_name": ["CPU:0"]}, MeshError, "`mesh_name`"),
    ],
)
def test_a_mesh_that_cannot_be(arguments, error, words):
    with pytest.raises(error, match=words) as raised:
        dtensor.create_mesh(**arguments)
    assert raised.value.given
    assert raised.value.fix


def test_a_distributed_mesh():
    mesh = dtensor.create_distributed_mesh({"a": 2, "b": 2}, "small", num_global_devices=4, num_clients=1, client_id=0)
    assert mesh.to_string().startswith("small|a=2,b=2|0,1,2,3|0,1,2,3|")
    assert dtensor.create_distributed_mesh([("a", -1)], device_type="CPU") == dtensor.create_mesh([("a", 8)])
    for wrong in ({"num_clients": 2}, {"client_id": 1}, {"num_global_devices": 9}):
        with pytest.raises(MeshError, match=f"`{next(iter(wrong))}`"):
            dtensor.create_distributed_mesh([("a", -1)], **wrong)


def test_the_only_process():
    assert (dtensor.client_id(), dtensor.num_clients(), dtensor.jobs()) == (0, 1, [])
    assert (dtensor.job_name(), dtensor.full_job_name()) == ("localhost", "localhost/replica:0/task:0")
    with pytest.raises(ClusterError, match="`task_id`"):
        dtensor.full_job_name(1)
    assert dtensor.preferred_device_type() == "CPU"
    assert dtensor.num_local_devices("CPU") == dtensor.num_global_devices() == 8
    assert dtensor.local_devices()[7] == "/job:localhost/replica:0/task:0/device:CPU:7"
    assert dtensor.initialize_accelerator_system("CPU") == "CPU"
    dtensor.shutdown_accelerator_system()
    with pytest.raises(DeviceError):
        dtensor.initialize_accelerator_system("TPU")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DTENSOR_JOBS": "127.0.0.1:1,127.0.0.1:2"}, "JAX has started already"),
        ({"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"}, "JAX has started already"),
        ({"KERAS_DISTRIBUTION_PROCESS_ID": "one"}, "KERAS_DISTRIBUTION_PROCESS_ID must be an integer"),
        ({"DTENSOR_JOBS": "127.0.0.1:1", "DTENSOR_CLIENT_ID": "one"}, "DTENSOR_CLIENT_ID must be an integer"),
    ],
)
def test_one_that_cannot_join_its_job_is_told(monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match=words):
        dtensor.initialize_accelerator_system()


def test_a_barrier_waits_for_what_was_dispatched(line, monkeypatch):
    waited = []
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    array = dtensor.copy_to_mesh([1.0, 2.0], dtensor.Layout.replicated(line, 1))
    dtensor.barrier(line, "the end", timeout_in_ms=1000)
    assert any(array is other for other in waited[0])
    with pytest.raises(ClusterError, match="`timeout_in_ms`"):
        dtensor.barrier(line, timeout_in_ms=0)
    with pytest.raises(MeshError):
        dtensor.barrier("mesh")
