"""`initialize` in real processes."""

import contextlib
import json
import re
import socket
import sys
import types

import pytest

import keras_dist as kd
from keras_dist.errors import ClusterError
from keras_dist.jobs import addresses, joining
from tests.forks import Python
from tests.processes import environment, free_address

PROGRAM = """
import json, sys, time
begin = time.monotonic()
import jax
import keras_dist as kd
options = json.loads(sys.argv[1])
for setting in options.get("settings", {}).items():
    jax.config.update(*setting)
if "devices before" in options:
    jax.devices()
try:
    kd.initialize(*options.get("arguments", ()), **options.get("named", {}))
    if "twice" in options:
        kd.initialize(*options["arguments"])
except Exception as error:
    print(json.dumps([type(error).__name__, str(error), time.monotonic() - begin]))
else:
    print(json.dumps([str(kd.distribution.cluster()), kd.distribution.is_chief(), kd.random.current_seed()]))
"""


@pytest.fixture
def address():
    return free_address()


def outcomes(*jobs, **variables):
    """What each process printed last, and its errors; each is given options and may be given variables."""
    started = [
        Python("-c", PROGRAM, json.dumps(options), env=environment(1) | variables | options.pop("environ", {}))
        for options in jobs
    ]
    ended = [process.outcome(60) for process in started]
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return [json.loads(output.splitlines()[-1]) for _, output, _ in ended], [errors for _, _, errors in ended]


DETECTED = {
    "Slurm": {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"},
    "Open MPI": {"OMPI_COMM_WORLD_SIZE": "2"},
}
INDICES = {
    "Slurm": ("SLURM_PROCID", "SLURM_LOCALID"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
}


@pytest.mark.multiprocess
@pytest.mark.parametrize("launcher", DETECTED)
def test_what_jax_detects_makes_a_job(launcher, address):
    number = address.rpartition(":")[2]  # JAX derives the port from that of the job
    job = (
        {"SLURM_JOB_ID": number} if launcher == "Slurm" else {"OMPI_MCA_orte_hnp_uri": f"{number}.0;tcp://127.0.0.1:1"}
    )
    (first, second), _ = outcomes(
        *({"environ": DETECTED[launcher] | job | dict.fromkeys(INDICES[launcher], str(index))} for index in range(2))
    )
    assert first[0].startswith("process 0 of 2, coordinator 127.0.0.1:") and first[1]
    assert second[0].startswith("process 1 of 2, coordinator 127.0.0.1:") and not second[1]


@pytest.mark.multiprocess
def test_once_and_before_jax_starts(address):
    (twice, late), _ = outcomes(
        {"arguments": [address, 1, 0], "twice": True}, {"arguments": [address, 1, 0], "devices before": True}
    )
    assert twice[0] == late[0] == "ClusterError"
    assert "has joined a job already" in twice[1] and "process 0 of 1" in twice[1]
    assert "JAX has started already" in late[1] and "first line" in late[1]


@pytest.mark.multiprocess
def test_what_does_not_come_in_time_is_named(address):
    soon = {"initialization_timeout_s": 3}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        (alone, nobody, unknown), errors = outcomes(
            {"arguments": [address, 2, 0], "named": soon},
            {"arguments": [f"127.0.0.1:{port}", 2, 1], "named": soon},
            {"arguments": ["nowhere.invalid:1234", 2, 1], "named": soon},
        )
    assert "process 0 of 2: process 1 did not join the job" in alone[1] and address in alone[1]
    assert f"process 1 of 2 cannot reach the coordinator at 127.0.0.1:{port}" in nobody[1]
    assert "unknown host" in unknown[1] and "nowhere.invalid:1234" in unknown[1]
    assert all(kind == "ClusterError" and seconds < 15 for kind, _, seconds in (alone, nobody, unknown))
    assert errors == [""] * 3  # nothing beside the exceptions


def test_a_place_in_a_job_is_free_again_when_its_process_has_not_joined(address, monkeypatch):
    monkeypatch.setattr(joining, "_claims", [])
    joining._claim(address, 1, 2)
    joining._claim(address, 0, 2)
    with pytest.raises(ClusterError, match="process 1 of 2 has joined already"):
        joining._claim(address, 1, 2)
    for claim in joining._claims:
        claim.close()
    joining._claim("a" * 300, 1, 2)
    joining._claim(address, 1, 2)
    for claim in joining._claims:
        claim.close()


STRANGER = """
import os, pathlib, socket, struct, sys, time
import jax
import keras_dist as kd
from tests.sockets import listening

marker = pathlib.Path(sys.argv[1])
kd.initialize()
jax.devices()  # Gloo listens from now on
strangers = []
if not marker.with_name(str(jax.process_index())).exists():
    marker.with_name(str(jax.process_index())).touch()
    coordinator = int(os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"].rpartition(":")[2])
    for host, port in listening(os.getpid()):
        for number in range(16 * (port != coordinator)):  # what a peer of Gloo says when it connects
            strangers.append(socket.create_connection((host, port)))
            strangers[-1].sendall(struct.pack("<q", number))
    time.sleep(1)
kd.set_distribution(kd.DataParallel())
model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
model.get_weights()
print("built", flush=True)
"""


@pytest.mark.multiprocess
def test_the_launcher_starts_a_job_again_that_a_stranger_has_stopped(tmp_path):
    script, report = tmp_path / "script.py", tmp_path / "jobs.json"
    script.write_text(STRANGER)
    options = ["--processes", 2, "--devices-per-process", 1, "--join-timeout", 8, "--report", report]
    code, output, errors = Python(
        "-m", "keras_dist", "launch", *options, "--", script, tmp_path / "m", env=environment() | {"PYTHONPATH": "."}
    ).outcome(90)
    assert code == 0 and output.count("] built\n") == 2, errors
    # the launcher stops the process that has not written its line when the other exits
    assert re.search(r"process [01] ends, because the processes have not connected for their first collective", output)
    (death,) = json.loads(report.read_text())["failures"]
    assert "have not connected for their first collective" in death["how"] and death["restarted"]


@pytest.mark.multiprocess
def test_without_a_job_the_error_says_how_to_run_alone_and_a_job_that_is_not_required_is_none(address, tmp_path):
    not_required = {"named": {"required": False}}
    (missing, alone, late, joined, partial), errors = outcomes(
        {},
        not_required,
        not_required | {"devices before": True},
        not_required | {"arguments": [address, 1, 0]},
        not_required | {"environ": {"KERAS_DISTRIBUTION_NUM_PROCESSES": "2"}},
    )
    assert missing[0] == "ClusterError" and "and JAX detects no job" in missing[1]
    for way in ("keras-dist launch --processes 1 -- train.py", "leave the call out", "required=False"):
        assert way in missing[1]
    assert alone[:2] == late[:2] == ["process 0 of 1, 1 of 1 cpu devices", True] and errors[1] == ""
    assert joined[0] == f"process 0 of 1, coordinator {address}, 1 of 1 cpu devices"
    assert partial[0] == "ClusterError" and "num_processes=2, process_id=0" in partial[1]
    (tmp_path / "train.py").write_text("import keras_dist as kd\nkd.initialize()\nprint(kd.distribution.cluster())")
    command = re.search(r"`keras-dist (.* train\.py)`", missing[1])[1].split()
    code, output, _ = Python("-m", "keras_dist", *command, env=environment(1), cwd=tmp_path).outcome(60)
    assert code == 0 and "process 0 of 1, coordinator" in output


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_of_ray_whom_nobody_joins_do_not_train_alone(workers, monkeypatch):
    context = types.SimpleNamespace(get_world_size=lambda: workers)
    monkeypatch.setitem(sys.modules, "ray.train", types.SimpleNamespace(get_context=lambda: context))
    refused = pytest.raises(ClusterError, match="a worker of Ray Train would train alone")
    with refused if workers > 1 else contextlib.nullcontext():
        kd.initialize(required=False)


def test_the_coordinator_listens_on_its_own_address_alone(address):
    with pytest.raises(ClusterError, match="cannot listen on its address"):
        addresses.check_can_listen("192.0.2.1:1234")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ClusterError, match="cannot listen on its address"):
            addresses.check_can_listen(f"127.0.0.1:{taken.getsockname()[1]}")


LISTENS = """
import json, os, sys
import jax, numpy as np
from jax.experimental import multihost_utils
import keras_dist as kd
from tests.sockets import listening

jax.config.update("jax_cpu_collectives_implementation", "mpi")  # which would end this process
kd.initialize(sys.argv[1], 2, int(sys.argv[2]), communication_options=kd.distribution.CommunicationOptions("gloo"))
gathered = multihost_utils.process_allgather(np.ones(2))
print(json.dumps([jax.config.jax_cpu_collectives_implementation, gathered.tolist(), listening(os.getpid())]))
multihost_utils.process_allgather(np.ones(2))  # both have looked
"""


@pytest.mark.multiprocess
def test_every_socket_of_a_job_listens_on_the_address_that_was_given():
    host = "127.0.0.1"
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        host = "::1"  # to which the names of few machines resolve
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        port = probe.getsockname()[1]
    given = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    started = [Python("-c", LISTENS, given, index, env=environment(1)) for index in range(2)]
    ended = [process.outcome(60) for process in started]
    assert [code for code, _, _ in ended] == [0, 0], ended
    found = [json.loads(output.splitlines()[-1]) for _, output, _ in ended]
    assert [one[:2] for one in found] == [["gloo", [[1, 1], [1, 1]]]] * 2
    (_, _, first), (_, _, second) = found
    assert len(first) == 3 and [host, port] in first  # the coordinator's two and Gloo's
    assert len(second) == 1
    assert {address for address, _ in [*first, *second]} == {host}


@pytest.mark.parametrize(
    "name", ["initialization_timeout_s", "heartbeat_timeout_s", "shutdown_timeout_s", "hang_timeout_s"]
)
@pytest.mark.parametrize("value", [0, -1, "10", True, float("inf"), 1e12])
def test_time_outs_are_positive(name, value):
    with pytest.raises(ClusterError, match=name):
        kd.initialize("127.0.0.1:1", 1, 0, **{name: value})


FORGED = [
    "",
    "2",
    "[]",
    "{}",
    "[" * 5000,
    '{"num_processes": Infinity, "collectives": "gloo", "seed": 0}',
    '{"num_processes": 2, "collectives": "gloo", "seed": "0"}',
    "\udc80",
]


@pytest.mark.parametrize("record", FORGED)
def test_what_no_process_says_when_it_joins_is_an_error(record):
    class Client:
        def key_value_set(self, key, value):
            pass

        def blocking_key_value_get(self, key, timeout_in_ms):
            return record.encode(errors="surrogateescape").decode()  # as jaxlib does

    with pytest.raises(ClusterError, match="must be given the same arguments") as error:
        joining._agree(Client(), 0, 2, joining.time.monotonic() + 5)
    assert "in process 0" in error.value.given or "the arguments of process 0 are not known" in error.value.given


@pytest.mark.parametrize("check_data", ["some", True, None, 2])
def test_comparisons_of_data_are_one_of_three(check_data):
    with pytest.raises(ClusterError, match="check_data"):
        kd.initialize("127.0.0.1:1", 1, 0, check_data=check_data)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"check_data": "sample"}, "check_data=full in process 1, 'sample' in process 0"),
        ({"num_processes": 3}, "num_processes=2 in process 1, 3 in process 0"),
        ({"collectives": "mpi"}, "collectives=gloo in process 1, 'mpi' in process 0"),
    ],
)
def test_all_join_with_the_same_arguments(other, message):
    class Client:
        def key_value_set(self, key, value):
            pass

        def blocking_key_value_get(self, key, timeout_in_ms):
            said = {"num_processes": 2, "collectives": "gloo", "check_data": "full", "seed": 0}
            return json.dumps(said | changes)

    changes = {}
    joining._agree(Client(), 1, 2, joining.time.monotonic() + 5, "full")
    changes = other
    with pytest.raises(ClusterError, match=message):
        joining._agree(Client(), 1, 2, joining.time.monotonic() + 5, "full")


@pytest.mark.parametrize("name", ["initialization_timeout_s", "hang_timeout_s"])
def test_the_launcher_sets_time_outs_that_are_not_given(monkeypatch, name):
    monkeypatch.setenv(f"KERAS_DISTRIBUTION_{name.upper()}", "0")
    with pytest.raises(ClusterError, match=name):
        kd.initialize("127.0.0.1:1", 1, 0)


@pytest.mark.parametrize("value", ["no", "False", None, 2, 0.0])
def test_required_is_true_or_false(value):
    with pytest.raises(ClusterError, match="`required` must be True or False") as caught:
        kd.initialize(required=value)
    assert f"required={value!r}" in caught.value.given
