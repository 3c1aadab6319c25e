"""`use_cpu_devices` and `XLA_FLAGS`: the devices asked for, with threads enough that they never wait in vain."""

import pytest

from tests.contracts.processes import run_fork, run_python

pytestmark = pytest.mark.multiprocess

FLAG = "--xla_force_host_platform_device_count"
POOL = "import keras_dist, os; print(os.environ.get('PJRT_NPROC'))"
REPORT = """
import os, jax
print(jax.device_count(), jax.default_backend(), os.environ.get("PJRT_NPROC"))
"""


def devices_after(program: str, run=run_fork, **environment: str) -> list[str]:
    """Number and kind of devices, and the size of the thread pool, after `program`."""
    return run(program + REPORT, **environment).split()


@pytest.mark.parametrize("count", [1, 32])
def test_makes_that_many_devices(count):
    threads = str(2 * count) if count > 1 else "None"
    assert devices_after(f"import keras_dist as kd; kd.use_cpu_devices({count})") == [str(count), "cpu", threads]


def test_before_the_start_the_last_call_counts_and_after_it_is_an_error_and_changes_nothing():
    program = """
import jax
import keras_dist as kd
kd.Model
kd.use_cpu_devices(2)
kd.use_cpu_devices(8)
kd.DeviceMesh("data=8").backend_mesh
kd.use_cpu_devices(8)
try:
    kd.use_cpu_devices(4)
except kd.errors.DeviceError as error:
    print(error.summary.split(":")[0])
"""
    assert devices_after(program) == ["use_cpu_devices(4)", "8", "cpu", "16"]


@pytest.mark.parametrize("program", ["import jax\nimport keras_dist", "from keras_dist import config"])
def test_a_count_from_outside_sizes_the_pool_at_import(program):
    variable = {"JAX_NUM_CPU_DEVICES": "8"} if "config" in program else {"XLA_FLAGS": f"{FLAG}=8"}
    assert devices_after(program, run_python, **variable) == ["8", "cpu", "16"]


def test_without_fake_devices_nothing_is_set():
    assert devices_after("import keras_dist", run_python) == ["1", "cpu", "None"]
    assert run_python(POOL, XLA_FLAGS=f"{FLAG}=1") == "None"


@pytest.mark.parametrize(("given", "kept"), [("64", "64"), ("8", "16"), ("many", "16")])
def test_a_larger_pool_is_left_alone(given, kept):
    assert run_python(POOL, XLA_FLAGS=f"{FLAG}=8", PJRT_NPROC=given) == kept


def test_the_call_wins_over_the_flag_and_keeps_the_others():
    flags = f"--xla_cpu_enable_fast_math=false {FLAG}=2"
    program = "import keras_dist as kd; kd.use_cpu_devices(8)\nimport os; print(repr(os.environ['XLA_FLAGS']))"
    left, *devices = devices_after(program, XLA_FLAGS=flags)
    assert left == repr(flags.removesuffix(f"{FLAG}=2").strip())
    assert devices == ["8", "cpu", "16"]


def test_the_last_flag_counts():
    assert run_python(POOL, XLA_FLAGS=f"{FLAG}=2 {FLAG}=4") == "8"


def test_fake_devices_are_chosen_on_a_machine_that_prefers_others():
    program = "import keras_dist as kd; kd.use_cpu_devices(2)\nimport jax; print(jax.config.jax_platforms)"
    assert devices_after(program, run_python, JAX_PLATFORMS="")[0] == "cpu"
