"""A process that dies, hangs or does something else ends its job, with the reason."""

import contextlib
import json
import os
import pathlib
import signal
import time

import pytest

from keras_dist.distribution.jobs import heartbeat
from tests.forks import Python
from tests.processes import environment, free_address

pytestmark = pytest.mark.multiprocess

PROGRAM = """
import ctypes, json, os, sys, threading, time
import numpy as np
import keras_dist as kd

address, index, how, folder = sys.argv[1:]
kd.initialize(address, 2, int(index), hang_timeout_s=10 if how == "hangs" else None)
kd.set_distribution(kd.DataParallel())

class Ends(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5 and index == "0" and how == "9":  # what Gloo does in one of its threads, or does not
            threading.Thread(target=ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev).start()
        if batch == 5 and index == "1":
            print(json.dumps(time.time()), flush=True)
            if how == "raises":
                raise ValueError("no disk")
            if how == "hangs":
                time.sleep(600)
            os.kill(os.getpid(), int(how))

callbacks = [Ends()]
if folder:
    callbacks.append(kd.callbacks.BackupAndRestore(folder, save_freq=2))
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((800, 3)), np.ones((800, 1)), 8, 100, verbose=0, callbacks=callbacks)
"""


@pytest.mark.parametrize("how", ["raises", signal.SIGKILL])
def test_the_others_end_within_ten_seconds_and_say_why(tmp_path, how):
    address = free_address()
    folder = tmp_path / "backup" if how == "raises" else ""
    told = "raises" if how == "raises" else str(int(how))
    jobs = [Python("-c", PROGRAM, address, index, told, folder, env=environment(1)) for index in range(2)]
    (code, _, errors), (death, output, own) = (job.outcome(90) for job in jobs)
    assert json.loads(output.splitlines()[-1])
    (line,) = [line for line in errors.splitlines() if line.startswith("keras_dist:")]
    if how == "raises":
        assert (code, death) == (heartbeat.EXIT_RESTART, 1)
        assert "process 0 ends, because process 1 of 2 has failed: ValueError: 'no disk'; saved: " in line
        assert f"{folder}" in line and "start the job again" in line and "ValueError: no disk" in own
    else:
        assert (code, death) == (1, -signal.SIGKILL)
        assert "process 1 of 2 has died or hangs: silent for" in line and "nothing is saved" in line


def test_a_hang_ends_all_with_the_stacks_of_each(tmp_path):
    address = free_address()
    folder = tmp_path / "backup"
    jobs = [Python("-c", PROGRAM, address, index, "hangs", folder, env=environment(1)) for index in range(2)]
    outcomes = [job.outcome(90) for job in jobs]
    assert [code for code, _, _ in outcomes] == [heartbeat.EXIT_RESTART] * 2
    assert all("no step for" in errors.splitlines()[-1] and "saved: " in errors for _, _, errors in outcomes)
    assert "in on_train_batch_end" in outcomes[1][2]


SERVICE = """
import sys
import numpy as np
import keras_dist as kd

class Told(kd.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", flush=True)

kd.initialize()
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [kd.callbacks.BackupAndRestore(sys.argv[1]), Told()]
model.fit(np.ones((80, 3)), np.ones((80, 1)), 8, 100_000, verbose=0, callbacks=callbacks)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_coordination_service_that_ends_or_stops_ends_the_processes_with_one_line(tmp_path, how):
    workers = [free_address(), free_address()]
    jobs = []
    for index in range(2):
        described = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        env = environment(1) | {"TF_CONFIG": json.dumps(described)}
        jobs.append(Python("-c", SERVICE, tmp_path / "backup", env=env))
    while not all(job.printed()[0].count("epoch") > 1 for job in jobs):
        assert all(job.is_running() for job in jobs)
        time.sleep(0.1)
    (service,) = pathlib.Path(f"/proc/{jobs[0].pid}/task/{jobs[0].pid}/children").read_text().split()
    os.kill(int(service), how)
    try:
        outcomes = [job.outcome(60) for job in jobs]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(service), signal.SIGKILL)
    whys = (
        "it has lost its coordination service",
        "process 0 of 2 does not answer, or its coordination service does not",
    )
    for index, (code, _, errors) in enumerate(outcomes):
        assert code == heartbeat.EXIT_RESTART, errors
        line = errors.splitlines()[-1]
        assert f"process {index} ends, because {whys[index]}; saved: " in line and "start the job again" in line
        assert "bad_cast" not in errors


DIFFERS = """
import sys
import numpy as np
import keras_dist as kd

address, index, how = sys.argv[1:]
kd.initialize(address, 2, int(index))
kd.set_distribution(kd.DataParallel())

def batches(*lengths):
    return ((np.ones((rows, 3), "f4"), np.ones((rows, 1), "f4")) for rows in lengths)

class Differs(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and how == "stops":
            self.model.stop_training = True
        if batch == 2 and how == "sets":
            self.model.optimizer.learning_rate = 0.5

lengths = [8] * 6
if index == "1" and how == "another length":
    lengths[3] = 4
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(*lengths), verbose=0, callbacks=[Differs()] * (index == "1"))
model.evaluate(batches(8), verbose=0)
"""


@pytest.mark.parametrize(
    ("how", "act"),
    [
        ("stops", "the end of fit"),
        ("sets", "setting variable 'sgd/learning_rate'"),
        ("another length", "the compilation of the train step"),
    ],
)
def test_processes_that_do_different_things_end_and_say_which(how, act):
    address = free_address()
    jobs = [Python("-c", DIFFERS, address, index, how, env=environment(1)) for index in range(2)]
    differ = f"after training step 3 of fit process 0 comes to training step 4 of fit, and process 1 to {act}; make the"
    for index, (code, _, errors) in enumerate([job.outcome(60) for job in jobs]):
        assert code == 1
        assert f"keras_dist: process {index} ends, because {differ} same calls in all processes" in errors
