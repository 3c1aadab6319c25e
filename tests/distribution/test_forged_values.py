"""A third party at the coordinator's port writes into the key-value store of a job: an error, and nothing is run."""

import os
import pickle
import signal
import socket

import pytest

from tests.distribution.test_rendezvous import WritesAFile
from tests.forks import Python
from tests.processes import environment

PROGRAM = """
import pathlib
import sys
import time
import keras_dist as kd
from keras_dist.distribution.jobs.rendezvous import Rendezvous

address, process, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
kd.initialize(address, 2, process)
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.build()
model.save(folder / "model")

gathered = Rendezvous._gathered


def late(self, *message):
    while not (folder / "forged").exists():
        time.sleep(0.05)
    return gathered(self, *message)


if process == 1:
    Rendezvous._gathered = late
try:
    model.save(folder / "other")
except kd.errors.ClusterError as error:
    print(f"refused: {error.summary}", flush=True)
(folder / f"refused {process}").touch()
time.sleep(60)
"""

ATTACK = """
import pathlib
import re
import sys
import time
from jaxlib import _jax

address, folder, content = sys.argv[1], pathlib.Path(sys.argv[2]), bytes.fromhex(sys.argv[3])
while not (folder / "model").exists():
    time.sleep(0.05)
client = _jax.get_distributed_runtime_client(address, 1, init_timeout=10, use_compression=True)
client.connect()


def write(key):
    client.key_value_set_bytes(key, content, allow_overwrite=True)


# while process 0 waits for process 1 in a save, say something in its place
while not (folder / "forged").exists():
    keys = {key for key, _ in client.key_value_dir_get_bytes("keras_dist/")}
    for key in [key for key in keys if re.fullmatch(r"keras_dist/\\d+/\\d+/0", key)]:
        if f"{key[:-1]}1" not in keys:
            write(f"{key[:-1]}1")
            (folder / "forged").touch()
while not all((folder / f"refused {process}").exists() for process in range(2)):
    time.sleep(0.05)
while True:
    for process in range(2):
        write(f"keras_dist/alive/{process}")
        write(f"keras_dist/joined/{process}")
    time.sleep(0.02)
"""


@pytest.mark.multiprocess
def test_what_a_third_party_says_is_an_error_and_runs_nothing(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    content = pickle.dumps(("a save", WritesAFile(tmp_path / "ran"), None)).hex()
    job = [Python("-c", PROGRAM, address, process, tmp_path, env=environment(1)) for process in range(2)]
    attack = Python("-c", ATTACK, address, tmp_path, content, env=environment(1))
    ended = [process.outcome(60) for process in job]
    os.kill(attack.pid, signal.SIGKILL)
    attack.outcome(10)
    refused = "the entry of process 1 in JAX's key-value store was not written by a process of this job"
    assert all(f"refused: {refused}" in output for _, output, _ in ended), ended
    (code, _, errors), (other, _, _) = ended
    assert code == 1 and other in (1, -signal.SIGABRT), ended  # JAX may end the process whose place another has taken
    assert "process 1 of 2 has failed: its heartbeat is " in errors and "which no process of a job writes" in errors
    assert not (tmp_path / "ran").exists()
