import jax
import pytest

import keras_dist as kd
from keras_dist.distribution.devices import find_device
from keras_dist.errors import DeviceError


@pytest.mark.parametrize("device_type", [None, "cpu", "CPU"])
def test_listing_and_counting(device_type: str | None) -> None:
    assert kd.list_devices(device_type) == [f"cpu:{index}" for index in range(8)]
    assert kd.get_device_count(device_type) == 8


@pytest.mark.parametrize("ask", [kd.list_devices, kd.get_device_count])
def test_a_type_that_this_machine_does_not_have(ask: object) -> None:
    with pytest.raises(DeviceError, match="no 'tpu' devices") as caught:
        ask("tpu")  # type: ignore[operator]
    assert "cpu:0 ... cpu:7" in caught.value.given


def test_names_lead_to_the_devices_of_jax() -> None:
    assert [find_device(name) for name in kd.list_devices()] == jax.devices()
    assert find_device("cpu") == find_device("CPU:0") == find_device(jax.devices()[0]) == jax.devices()[0]


@pytest.mark.parametrize("name", ["cpu:77", "cpu:x", "tpu:0", "nonsense"])
def test_names_that_lead_nowhere(name: str) -> None:
    with pytest.raises(DeviceError, match="Device not found"):
        find_device(name)


@pytest.mark.parametrize("count", [0, -1, 2.0, "8", True, None])
def test_use_cpu_devices_wants_a_number(count: object) -> None:
    with pytest.raises(DeviceError, match="`count` must be an integer of at least 1"):
        kd.use_cpu_devices(count)  # type: ignore[arg-type]


def test_use_cpu_devices_again_with_the_running_number_does_nothing() -> None:
    kd.use_cpu_devices(8)
    assert kd.get_device_count() == 8
