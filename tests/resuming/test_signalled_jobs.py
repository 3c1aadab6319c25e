"""A signal to all processes of a job, as systemd, Slurm and terminals send it, saves the state."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import keras_dist as kd
from keras_dist import checkpoint
from keras_dist.callbacks import BackupAndRestore
from tests.processes import free_address, killed_environment
from tests.soak import ROUNDS

STEPS = 5


def trained(epochs, *callbacks):
    kd.set_random_seed(1)
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(4, "tanh"), kd.layers.Dropout(0.25), kd.layers.Dense(1)])
    model.compile(kd.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(8 * STEPS, 3)).astype("f4")
    return model.fit(x, x[:, :1], 8, epochs, verbose=0, callbacks=[*callbacks]).history["loss"]


PROGRAM = """
import json, pathlib, signal, sys, time
import keras_dist as kd
from tests.resuming.test_signalled_jobs import trained

class Show(kd.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        (folder / f"trains {process}").touch()
        time.sleep(0.005)  # so that few epochs pass until the signal arrives

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(3)

folder, epochs, process = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let programs in the background ignore it
kd.initialize(*([process, 2, int(sys.argv[4])] if len(sys.argv) > 4 else []))
process = kd.distribution.cluster().process_index
kept = Slow() if sys.argv[3] == "slow" and process == 1 else None
kd.set_distribution(kd.DataParallel())
backup = kd.callbacks.BackupAndRestore(folder / "backup", save_freq=10**9, delete_checkpoint=False)
print(json.dumps(trained(epochs, backup, Show())), flush=True)
"""


def started(how, folder, epochs):
    """The processes of a job that this one has started: its launcher, or all of it."""
    address = free_address()
    program = [folder / "program.py", folder, str(epochs)]
    program[0].write_text(PROGRAM)
    launcher = ["-m", "keras_dist", "launch"]
    node = ["--nodes", "2", "--coordinator", address, "--node-rank"]
    commands = {
        "launch": [[*launcher, "--processes", "2", "--", *program, "-"]],
        "nodes": [[*launcher, *node, str(rank), "--", *program, "slow"] for rank in (0, 1)],
        "plain": [[*program, address, str(index)] for index in (0, 1)],
    }
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    env = killed_environment() | {"XLA_FLAGS": "", "PYTHONPATH": root}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen([sys.executable, *command], env=env, **streams) for command in commands[how]]


def outcomes(jobs):
    printed = [job.communicate(timeout=120)[0] for job in jobs]
    return [job.returncode for job in jobs], "".join(printed)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("launch", signal.SIGTERM),
        ("nodes", signal.SIGTERM),
        ("plain", signal.SIGTERM),
        ("launch", signal.SIGINT),
        ("plain", signal.SIGHUP),
        *[("launch", signal.SIGHUP), ("plain", signal.SIGINT)][: 2 * ROUNDS],
    ],
)
def test_a_signal_to_all_processes_saves_and_the_job_resumes_as_if_uninterrupted(tmp_path, how, number):
    jobs = started(how, tmp_path, 10**6)
    while not all((tmp_path / f"trains {index}").exists() for index in (0, 1)):
        assert all(job.poll() is None for job in jobs), outcomes(jobs)
        time.sleep(0.05)
    ours = [psutil.Process(job.pid) for job in jobs]
    family = [*ours, *(child for one in ours for child in one.children(recursive=True))]
    assert len(family) == {"launch": 5, "nodes": 7, "plain": 3}[how]  # with the coordination service
    for process in family:
        process.send_signal(number)
    codes, printed = outcomes(jobs)
    assert {*codes} == {BackupAndRestore.EXIT_CODE}, printed
    assert "terminate called" not in printed, printed  # a process that exits slowly is not aborted
    assert f"BackupAndRestore: {number.name}, saved" in printed
    assert not psutil.wait_procs(family, timeout=60)[1]
    (state,) = checkpoint.examine(tmp_path / "backup").states
    epochs = state.step // STEPS + 2
    codes, printed = outcomes(started(how, tmp_path, epochs))
    assert {*codes} == {0} and "BackupAndRestore: resuming from" in printed, printed
    line = next(line for line in printed.splitlines() if line.endswith("]"))
    losses = json.loads(line.removeprefix("[0] ").removeprefix("[1] "))
    with kd.DataParallel(devices=kd.list_devices()[:2]).scope():
        np.testing.assert_allclose(losses, trained(epochs), rtol=1e-4)
