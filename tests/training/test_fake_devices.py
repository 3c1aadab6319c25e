"""Collectives on more fake devices than cores neither deadlock nor abort the process."""

import subprocess
import sys

import pytest

from tests import forks, processes
from tests.soak import LARGE, ROUNDS

STEPS = 2000 if LARGE else 300

PROGRAM = f"""
import os, sys
devices, cores, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import keras_dist as kd
if how == "use_cpu_devices":
    kd.use_cpu_devices(devices)
import jax, numpy as np
from flax import nnx
assert jax.device_count() == devices
kd.set_distribution(kd.DataParallel())
model = kd.Model.from_nnx(lambda rngs: nnx.Linear(4, 4, rngs=rngs), seed=0)
model.compile("sgd", "mse")
x = np.ones((devices, 4), "float32")
assert "all-reduce" in model.lower_train_step(x, x).compile().as_text()
steps = np.ones((devices * {STEPS}, 4), "float32")
model.fit(steps, steps, batch_size=devices, verbose=0)
print("steps", int(model.state.step))
"""


def environment(devices, how):
    ours = processes.environment(devices if how == "XLA_FLAGS" else None)
    # a deadlock shows after 15 seconds instead of 60
    return ours | {"XLA_FLAGS": f"{ours['XLA_FLAGS']} --xla_cpu_collective_call_terminate_timeout_seconds=15"}


CASES = [(32, 1, "use_cpu_devices"), (32, 1, "XLA_FLAGS"), (32, 2, "XLA_FLAGS"), (8, 2, "use_cpu_devices")]
SOAKED = CASES[1:] if ROUNDS == 1 else CASES * ROUNDS


@pytest.mark.multiprocess
@pytest.mark.soak
@pytest.mark.parametrize(("devices", "cores", "how"), SOAKED or CASES[:1])
def test_all_reduce_steps_finish(devices, cores, how):
    arguments, env = ["-c", PROGRAM, str(devices), str(cores), how], environment(devices, how)
    if how == "XLA_FLAGS":  # read when keras_dist is imported
        command = [sys.executable, *arguments]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    else:
        run = forks.python(*arguments, env=env, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip() == f"steps {STEPS}"


LATE = """
import os, sys
import keras_dist as kd
if sys.argv[1] == "XLA_FLAGS":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
if sys.argv[1] == "config":
    jax.config.update("jax_num_cpu_devices", 8)
assert kd.DeviceMesh("data=8").size == 8
print(os.environ["PJRT_NPROC"])
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(("how", "flags"), [("quoted in a file", None), ("XLA_FLAGS", ""), ("config", "")])
def test_devices_asked_for_in_other_ways_get_their_threads(tmp_path, how, flags):
    if flags is None:
        (tmp_path / "flags").write_text('--xla_force_host_platform_device_count="8"\n')
        flags = str(tmp_path / "flags")
    run = forks.python("-c", LATE, how, env=processes.environment() | {"XLA_FLAGS": flags})
    assert run.stdout.strip() == "16", run.stderr[-2000:]
