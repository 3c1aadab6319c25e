"""A process that dies, hangs or does something else ends its job, with the reason."""

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time

import psutil
import pytest

from keras_dist._unstable.coordination_service import Connection, CoordinationService
from keras_dist.jobs import heartbeat
from tests.forks import Python
from tests.processes import environment, free_address
from tests.soak import ROUNDS

pytestmark = pytest.mark.multiprocess

PROGRAM = """
import ctypes, json, os, signal, sys, threading, time
import numpy as np
import keras_dist as kd

address, index, how, folder = sys.argv[1:]
options = {"hangs": {"hang_timeout_s": 10}, "stops": {"heartbeat_timeout_s": 7}}
kd.initialize(address, 2, int(index), **options.get(how, {}))
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
            os.kill(os.getpid(), signal.SIGSTOP if how == "stops" else signal.SIGKILL)
        if batch == 5 and how in ("alone", "stops"):  # computes, and waits for nobody
            time.sleep(600)

callbacks = [Ends()]
if folder:
    callbacks.append(kd.callbacks.BackupAndRestore(folder, save_freq=2))
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((800, 3)), np.ones((800, 1)), 8, 100, verbose=0, callbacks=callbacks)
"""


@pytest.mark.parametrize("how", ["raises", "9", "alone"])  # far before `heartbeat_timeout_s`
def test_the_others_end_within_ten_seconds_and_say_why(tmp_path, how):
    address = free_address()
    folder = tmp_path / "backup" if how == "raises" else ""
    jobs = [Python("-c", PROGRAM, address, index, how, folder, env=environment(1)) for index in range(2)]
    while jobs[1].is_running():
        assert jobs[0].is_running()
        time.sleep(0.1)
    (code, _, errors), (death, output, own) = (job.outcome(50) for job in jobs)
    assert json.loads(output.splitlines()[-1])
    (line,) = [line for line in errors.splitlines() if line.startswith("keras_dist:")]
    if how == "raises":
        assert (code, death) == (heartbeat.EXIT_RESTART, 1)
        assert "process 0 ends, because process 1 of 2 has failed: ValueError: 'no disk'; saved: " in line
        assert f"{folder}" in line and "start the job again" in line and "ValueError: no disk" in own
    else:
        assert (code, death) == (1, -signal.SIGKILL)
        assert "process 1 of 2 has exited: its connection is closed; nothing is saved" in line


def test_a_process_that_is_silent_ends_the_others_after_the_time_that_the_message_names():
    address = free_address()
    jobs = [Python("-c", PROGRAM, address, index, "stops", "", env=environment(1)) for index in range(2)]
    code, _, errors = jobs[0].outcome(120)
    os.kill(jobs[1].pid, signal.SIGKILL)
    assert code == 1 and jobs[1].outcome(10)[0] == -signal.SIGKILL
    assert "process 1 of 2 has exited or hangs: silent for" in errors and "raise heartbeat_timeout_s" in errors


def look(connection, until):
    end = time.monotonic() + 60
    while not until() and time.monotonic() < end:
        connection.look()
        time.sleep(0.02)
    assert until()


def test_the_service_reports_processes_that_exit_and_strangers_are_none():
    service = CoordinationService(free_address(), 3, {})
    processes = [Connection("127.0.0.1", service.entrance, index) for index in range(2)]
    port, key = service.entrance.split()
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"0" * len(key) + b"00000001", key.encode()):
        with socket.create_connection(("127.0.0.1", int(port))) as stranger:
            stranger.sendall(said)
    processes[1]._close()
    look(processes[0], lambda: processes[0].exited)
    processes.append(Connection("127.0.0.1", service.entrance, 2))  # later than the exit
    look(processes[2], lambda: processes[2].exited)
    assert processes[0].exited == processes[2].exited == {1} and not processes[0].is_closed
    ending = threading.Thread(target=service.shutdown)
    ending.start()
    ending.join(2)
    assert ending.is_alive()  # process 2 has not exited
    processes[2]._close()
    ending.join(9)
    assert not ending.is_alive()
    look(processes[0], lambda: processes[0].is_closed)


EXITS_SLOWLY = """
import sys, time
import keras_dist as kd

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(3)

address, index = sys.argv[1:]
kd.initialize(address, 2, int(index))
kd.list_devices()
kept = Slow() if index == "1" else None
"""


def test_the_end_of_the_first_process_aborts_none_that_is_about_to_exit():
    address = free_address()
    job = [Python("-c", EXITS_SLOWLY, address, index, env=environment(1)) for index in range(2)]
    outcomes = [process.outcome(120) for process in job]
    assert [code for code, _, _ in outcomes] == [0, 0], outcomes


DATA = """
import atexit, ctypes, sys
import numpy as np
import keras_dist as kd

address, index = sys.argv[1:]
if index == "0":  # as threads of XLA and Gloo do, sometimes, in destructors
    terminate = ctypes.cast(ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev, ctypes.c_void_p)
    ctypes.CDLL(None).__cxa_atexit(terminate, None, None)
    atexit.register(print, "exit functions of Python are called")
kd.initialize(address, 2, int(index))
kd.set_distribution(kd.DataParallel())

def batches():
    for batch in range(100):
        rows = 6 if batch == 7 and index == "0" else 8
        yield np.ones((8, 3), "f4"), np.ones((rows, 1), "f4")

model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), verbose=0)
"""


def test_an_error_in_the_data_of_one_process_is_its_last_word():
    address = free_address()
    jobs = [Python("-c", DATA, address, index, env=environment(1)) for index in range(2)]
    (code, output, errors), (other, _, others) = (job.outcome(120) for job in jobs)
    assert (code, other) == (1, 1), errors
    assert "DataError: x and y must have one row each" in errors and "terminate called" not in errors
    assert "exit functions of Python are called" in output
    assert "process 1 ends, because process 0 of 2 has failed: DataError:" in others


STOPS = """
import os, sys
import numpy as np
import keras_dist as kd

class Told(kd.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        self.model.stop_training = os.path.exists(sys.argv[3])

kd.initialize(sys.argv[1], 2, int(sys.argv[2]), heartbeat_timeout_s=float(sys.argv[4]))
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((80, 3)), np.ones((80, 1)), 8, 100_000, verbose=0, callbacks=[Told()])
"""


@pytest.mark.soak
@pytest.mark.parametrize(("who", "timeout_s"), [("one", 60), ("all", 7)])
def test_a_process_or_a_job_that_is_stopped_for_twenty_seconds_ends_nothing(tmp_path, who, timeout_s):
    address = free_address()
    jobs = [Python("-c", STOPS, address, index, tmp_path / "end", timeout_s, env=environment(1)) for index in range(2)]
    while not all("epoch 1" in job.printed()[0] for job in jobs):
        assert all(job.is_running() for job in jobs)
        time.sleep(0.1)
    service = psutil.Process(jobs[0].pid).children()
    stopped = [jobs[1].pid] if who == "one" else [jobs[0].pid, jobs[1].pid, service[0].pid]
    for how, moment_s in ((signal.SIGSTOP, 20), (signal.SIGCONT, 0)):
        for pid in stopped:
            os.kill(pid, how)
        time.sleep(moment_s)
    before = [job.printed()[0].count("epoch") for job in jobs]
    while not all(job.printed()[0].count("epoch") > count + 1 for job, count in zip(jobs, before, strict=True)):
        assert all(job.is_running() for job in jobs), [job.outcome(60) for job in jobs]
        time.sleep(0.1)
    for job in jobs:
        os.kill(job.pid, signal.SIGKILL)
        job.outcome(10)


def test_no_service_is_left_when_all_processes_are_killed():
    address = free_address()
    jobs = [Python("-c", STOPS, address, index, "", 60, env=environment(1)) for index in range(2)]
    while not all("epoch 1" in job.printed()[0] for job in jobs):
        assert all(job.is_running() for job in jobs)
        time.sleep(0.1)
    (service,) = psutil.Process(jobs[0].pid).children()
    for job in jobs:
        os.kill(job.pid, signal.SIGKILL)
    assert [job.outcome(30)[0] for job in jobs] == [-signal.SIGKILL] * 2
    assert not psutil.wait_procs([service], timeout=60)[1]


@pytest.mark.soak
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

kd.initialize(heartbeat_timeout_s=float(sys.argv[2]))
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [kd.callbacks.BackupAndRestore(sys.argv[1]), Told()]
model.fit(np.ones((80, 3)), np.ones((80, 1)), 8, 100_000, verbose=0, callbacks=callbacks)
"""


@pytest.mark.parametrize(("how", "timeout_s"), [(signal.SIGKILL, 3600), (signal.SIGSTOP, 7)])
def test_a_coordination_service_that_ends_or_stops_ends_the_processes_with_one_line(tmp_path, how, timeout_s):
    workers = [free_address(), free_address()]
    jobs = []
    for index in range(2):
        described = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        env = environment(1) | {"TF_CONFIG": json.dumps(described)}
        jobs.append(Python("-c", SERVICE, tmp_path / "backup", timeout_s, env=env))
    while not all(job.printed()[0].count("epoch") > 3 for job in jobs):  # a save waits for the one before
        assert all(job.is_running() for job in jobs)
        time.sleep(0.1)
    (service,) = psutil.Process(jobs[0].pid).children()
    service.send_signal(how)
    try:
        outcomes = [job.outcome(60) for job in jobs]
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            service.kill()
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
if index == "1" and how == "fewer":
    lengths = [8] * 3
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
        *[("fewer", "the end of fit")][:ROUNDS],  # which ends as where a callback stops it
    ],
)
def test_processes_that_do_different_things_end_and_say_which(how, act):
    address = free_address()
    jobs = [Python("-c", DIFFERS, address, index, how, env=environment(1)) for index in range(2)]
    differ = f"after training step 3 of fit process 0 comes to training step 4 of fit, and process 1 to {act}; make the"
    for index, (code, _, errors) in enumerate([job.outcome(60) for job in jobs]):
        assert code == 1
        assert f"keras_dist: process {index} ends, because {differ} same calls in all processes" in errors


TOLD = """
import os, signal, sys
import numpy as np
import keras_dist as kd

address, index, who, number, use = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let programs in the background ignore it
kd.initialize(address, 2, int(index))
kd.set_distribution(kd.DataParallel())

class Tell(kd.callbacks.Callback):
    steps = 0

    def count(self, batch, logs=None):
        Tell.steps += 1
        if Tell.steps == 5 and index == who:
            os.kill(os.getpid(), int(number))

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = count

model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((800_000, 3), "f4"), np.ones((800_000, 1), "f4")
try:
    if use == "fit":
        model.fit(x, y, 8, verbose=0, callbacks=[Tell()])
    elif use == "evaluate":
        model.evaluate(x, y, 8, verbose=0, callbacks=[Tell()])
    elif use == "predict":
        model.predict(x, 8, verbose=0, callbacks=[Tell()])
    else:
        for batch in range(100_000):
            model.train_on_batch(x[:8], y[:8])
            Tell().count(batch)
finally:
    print("steps", Tell.steps)
"""


@pytest.mark.parametrize(
    ("use", "number", "codes"),
    [
        ("fit", signal.SIGTERM, (143, 143)),
        ("evaluate", signal.SIGINT, (143, -signal.SIGINT)),
        *[("predict", signal.SIGTERM, (143, 143)), ("train_on_batch", signal.SIGTERM, (143, 143))][: 2 * ROUNDS],
    ],
)
def test_a_signal_to_one_ends_all_after_the_same_step(use, number, codes):
    address = free_address()
    jobs = [Python("-c", TOLD, address, index, 1, int(number), use, env=environment(1)) for index in range(2)]
    outcomes = [job.outcome(90) for job in jobs]
    assert tuple(code for code, _, _ in outcomes) == codes, outcomes
    (steps,) = {output.splitlines()[-1] for _, output, _ in outcomes}
    assert 5 <= int(steps.removeprefix("steps ")) < 100_000


ANYWHERE = """
import os, sys, threading, time
import numpy as np
import keras_dist as kd

address, index, processes, folder, who, how, when = sys.argv[1:]

def end():
    time.sleep(float(when))
    print(time.time(), flush=True)
    os.kill(os.getpid(), int(how))

kd.initialize(address, int(processes), int(index), heartbeat_timeout_s=7)
if index == who:
    threading.Thread(target=end, daemon=True).start()
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((160, 3)), np.ones((160, 1))
while True:
    model.fit(x, y, 16, 2, verbose=0, callbacks=[kd.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=5)])
    model.evaluate(x, y, 16, verbose=0)
    model.predict(x, 16, verbose=0)
    model.save(f"{folder}/model", overwrite=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("trial", range(max(1, 2 * ROUNDS)))
def test_whatever_the_others_do_they_end(tmp_path, trial):
    numbers = random.Random(trial)
    processes, how = numbers.choice([2, 3]), numbers.choice([signal.SIGKILL, signal.SIGSTOP])
    who, when = numbers.randrange(processes), numbers.uniform(0, 15)
    address = free_address()
    jobs = [
        Python("-c", ANYWHERE, address, index, processes, tmp_path, who, int(how), when, env=environment(1))
        for index in range(processes)
    ]
    try:
        for code, _, errors in [job.outcome(90) for index, job in enumerate(jobs) if index != who]:
            ended = time.time()
            last = errors.splitlines()[-1]
            assert f"process {who} of {processes} has exited" in last
            assert code == (heartbeat.EXIT_RESTART if "start the job again" in last else 1)
    finally:
        with contextlib.suppress(ProcessLookupError):  # one that was stopped
            os.kill(jobs[who].pid, signal.SIGKILL)
    _, output, _ = jobs[who].outcome(10)
    assert ended - json.loads(output.splitlines()[-1]) < 10
