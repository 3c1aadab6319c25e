"""`initialize` where `jax.distributed.initialize` was called before, as Ray's JaxTrainer does."""

import json
import os
import re
import signal

import pytest

from tests.forks import Python
from tests.processes import environment, free_address

pytestmark = pytest.mark.multiprocess

SHARED = """
import json, os, sys, time, warnings
import jax
import numpy as np

address, processes, process, options = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
jax.distributed.initialize(address, processes, process)
import keras_dist as kd
from keras_dist.jobs import heartbeat
"""

TRAINS = f"""{SHARED}
from tests.sockets import listening

if options["backend"] == "started":
    jax.devices()
kd.initialize(required=False, communication_options=kd.distribution.CommunicationOptions("gloo"))
warnings.warn("from each process")
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
losses = model.fit(x, x.sum(1, keepdims=True), epochs=2, verbose=0).history["loss"]
try:
    model.fit(x + process, x.sum(1, keepdims=True), verbose=0)
except kd.errors.ClusterError as error:
    refused = str(error)
try:
    kd.initialize()
except kd.errors.ClusterError as error:
    twice = str(error)
coordinator = int(address.rpartition(":")[2])
hosts = [host for host, port in listening(os.getpid()) if port != coordinator]
print(json.dumps([losses, kd.random.current_seed(), str(kd.distribution.cluster()), refused, twice, hosts]))
"""


def outcomes(program, *options, processes=2, timeout=120):
    """How each process of a job ended, and its output and errors."""
    address = free_address()
    given = options or ({},) * processes
    started = [
        Python(
            "-c", program, address, processes, process, json.dumps(each), env=environment(1) | each.pop("environ", {})
        )
        for process, each in enumerate(given)
    ]
    return address, [process.outcome(timeout) for process in started]


@pytest.mark.parametrize("backend", ["not started", "started"])
def test_a_job_that_others_have_joined_trains_as_one_of_our_own(backend):
    address, ended = outcomes(TRAINS, *[{"backend": backend}] * 2)
    assert [code for code, _, _ in ended] == [0, 0], ended
    first, second = (json.loads(output.splitlines()[-1]) for _, output, _ in ended)
    assert first[:2] == second[:2]  # losses and seed
    for process, (_, _, cluster, refused, twice, hosts) in enumerate([first, second]):
        assert cluster.startswith(f"process {process} of 2, coordinator {address}")
        assert "do not have the same data" in refused and "has joined a job already" in twice
        assert backend == "started" or hosts == ["127.0.0.1"]  # JAX starts Gloo on the address of the machine's name
    assert ["from each process" in errors for _, _, errors in ended] == [True, False]


WATCHES = f"""{SHARED}
kd.initialize(heartbeat_timeout_s=5)
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 8)), np.ones((64, 1)), verbose=0)
print("trained", flush=True)
if process:
    time.sleep(600)
from keras_dist.jobs.rendezvous import Rendezvous
Rendezvous("wait for process 1").each(lambda: None)
"""


def test_a_process_that_is_killed_is_noticed_by_the_heartbeats():
    address = free_address()
    started = [Python("-c", WATCHES, address, 2, process, "{}", env=environment(1)) for process in range(2)]
    while "trained" not in started[1].printed()[0] and started[1].is_running():
        signal.sigtimedwait([], 0.1)
    os.kill(started[1].pid, signal.SIGKILL)
    (code, _, errors), (killed, _, _) = (process.outcome(60) for process in started)
    assert (code, killed) == (1, -signal.SIGKILL)
    assert re.search(r"process 0 ends, because process 1 of 2 has exited or hangs: silent for \d+ s", errors)


SHUTS_DOWN = f"""{SHARED}
import threading
kd.initialize(heartbeat_timeout_s=2)
watching = heartbeat.current().is_watching
jax.distributed.shutdown()
for thread in threading.enumerate():
    if thread.name.startswith("keras_dist") and "warns" not in thread.name:
        thread.join()
model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(1)])
print(json.dumps([watching, heartbeat.current().is_watching]))
raise SystemExit(3)
"""


def test_heartbeats_end_when_others_shut_down_their_runtime_and_the_process_runs_on():
    _, ended = outcomes(SHUTS_DOWN)
    assert [code for code, _, _ in ended] == [3, 3], ended
    assert [json.loads(output.splitlines()[-1]) for _, output, _ in ended] == [[True, False]] * 2


CONTRADICTS = f"""{SHARED}
for arguments in options["wrong"]:
    try:
        kd.initialize(**arguments)
    except kd.errors.ClusterError as error:
        print(json.dumps(str(error)))
if options["started"]:
    jax.devices()
try:
    kd.initialize(address, 1, 0, communication_options=kd.distribution.CommunicationOptions(options["implementation"]))
except kd.errors.ClusterError as error:
    print(json.dumps(str(error)))
"""


def test_arguments_that_contradict_the_running_job_are_named():
    wrong = [
        {"num_processes": 2},
        {"job_addresses": "127.0.0.1:1", "num_processes": 1, "process_id": 0},
        {"job_addresses": "192.0.2.77:1,192.0.2.78:1", "process_id": 1},
    ]
    environ = {"KERAS_DISTRIBUTION_PROCESS_ID": "0"}
    options = {"wrong": wrong, "started": False, "implementation": "gloo", "environ": environ}
    address, ((code, output, errors),) = outcomes(CONTRADICTS, options, processes=1)
    assert code == 0, errors
    said = [json.loads(line) for line in output.splitlines()]
    assert len(said) == 3 and all(
        "contradict the job that jax.distributed.initialize has joined" in one for one in said
    )
    assert "num_processes=2, but 1 there" in said[0] and "job_addresses" not in said[0]
    assert f"job_addresses=127.0.0.1:1, but {address} there" in said[1] and "process_id" not in said[1].split("fix")[0]
    assert "process_id=1, but 0 there" in said[2] and "job_addresses=192.0.2.77:1" in said[2]


def test_communication_cannot_change_once_a_backend_has_started():
    options = {"wrong": [], "started": True, "implementation": "mpi", "environ": {"MPITRAMPOLINE_LIB": __file__}}
    _, ((code, output, errors),) = outcomes(CONTRADICTS, options, processes=1)
    assert code == 0, errors
    assert "JAX reads them when it starts" in output
