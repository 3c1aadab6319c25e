"""What is told of the devices of this machine."""

import json
import math

import pytest

from keras_dist import errors
from keras_dist.distribution.devices import DeviceReport, report_devices, suggest_mesh_shapes


def test_all_devices_with_their_meshes_and_settings(monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "")
    report = report_devices()
    assert report.devices == tuple(f"cpu:{index}" for index in range(8))
    assert report.fake_devices == 8
    assert report.environment["PJRT_NPROC"] == "32" and "JAX_NUM_CPU_DEVICES" not in report.environment
    assert json.loads(json.dumps(report.to_dict()))["mesh_shapes"] == list(report.mesh_shapes)
    text = str(report)
    for part in ("8 devices (cpu): cpu:0, cpu:1", "\ndata=2,model=4 │", "half of the rows", "kd.use_cpu_devices(8)"):
        assert part in text


def test_one_device_is_not_fake():
    report = DeviceReport(("cpu:0",), ("cpu",), ({"data": 1, "model": 1},), {})
    assert report.fake_devices == 0
    assert str(report).startswith("1 device (cpu): cpu:0\n")
    assert "none of the devices is fake; the environment has no settings of devices" in str(report)


def test_many_devices_are_cut_short():
    names = tuple(f"tpu:{index}" for index in range(256))
    assert "tpu:7, ... tpu:255" in str(DeviceReport(names, ("TPU v5",), (), {}))


@pytest.mark.parametrize("count", [1, 7, 8, 12])
def test_meshes_have_all_devices(count):
    shapes = suggest_mesh_shapes(count)
    assert all(math.prod(shape.values()) == count for shape in shapes)
    sizes = [shape["model"] for shape in shapes]
    assert sizes == [size for size in range(1, count + 1) if count % size == 0]


@pytest.mark.parametrize("count", [0, -1, 2.5, "8"])
def test_no_number_of_devices_is_an_error(count):
    with pytest.raises(errors.DeviceError, match="`count` must be an integer of at least 1"):
        suggest_mesh_shapes(count)
