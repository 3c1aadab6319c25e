"""Where the coordinator and Gloo listen, and where processes of other machines look for them."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from keras_dist.errors import ClusterError
from keras_dist.jobs import addresses, joining
from keras_dist.jobs.addresses import CoordinatorAddress, own_address_towards
from keras_dist.jobs.job_arguments import JobArguments
from tests.forks import ROOT
from tests.processes import environment, free_address

ROUTED = own_address_towards([])


@pytest.fixture
def names(monkeypatch):
    """The addresses of names on this machine, which the test may change."""
    known = {"first": ["127.0.1.1"], "10.0.0.1": ["10.0.0.1"], "127.0.0.1": ["127.0.0.1"], "::1": ["::1"]}
    monkeypatch.setattr(addresses, "numbers_of", lambda host: known.get(host, []))
    monkeypatch.setattr(addresses, "own_address_towards", lambda hosts: ",".join([*sorted(hosts), "10.0.0.1"]))
    monkeypatch.delenv(addresses.BIND_VARIABLE, raising=False)
    return known


def coordinator(given, processes=2, *others):
    return CoordinatorAddress(given, processes, (given, *others))


def test_a_name_that_is_127_0_1_1_on_its_own_machine_is_reached_over_the_default_route(names):
    found = coordinator("first:1234")
    assert found.reached == found.bound == "10.0.0.1:1234"
    assert str(found) == "first:1234 (here 127.0.1.1, so tried at 10.0.0.1:1234)"
    for part in ("first is 127.0.1.1", "listens on 10.0.0.1:1234", "JAX_COORDINATOR_BIND_ADDRESS=address:1234"):
        assert part in found.note()


def test_the_route_to_the_other_processes_comes_first(names):
    assert coordinator("first:1", 2, "second:2").reached == "second,10.0.0.1:1"
    names["first"].append("10.0.0.7")
    assert coordinator("first:1", 2, "second:2").reached == "10.0.0.7:1"  # which others resolve, too
    names["first"][1:] = ["fd00::7"]
    assert coordinator("first:1").reached == "[fd00::7]:1"


@pytest.mark.parametrize(
    ("given", "processes", "others"),
    [
        ("127.0.0.1:1", 2, []),
        ("[::1]:1", 2, []),
        ("localhost:1", 2, []),
        ("first:1", 1, []),
        ("first:1", 2, ["first:2"]),
        ("10.0.0.1:1", 2, []),
    ],
)
def test_a_job_on_one_machine_and_addresses_that_others_reach_stay_as_given(names, given, processes, others):
    names["localhost"] = ["127.0.0.1", "::1"]
    found = coordinator(given, processes, *others)
    assert found.reached == found.bound == given and found.note() is None


@pytest.mark.parametrize(
    ("given", "running", "same"),
    [
        ("localhost:1234", "127.0.0.1:1234", True),
        ("[::1]:1234", "localhost:1234", True),
        ("first:1234", "10.0.0.1:1234", True),  # in the processes of its own machine
        ("unknown:1234", "unknown:1234", True),
        ("localhost:1234", "127.0.0.1:1235", False),
        ("10.0.0.1:1234", "10.0.0.2:1234", False),
        ("unknown:1234", "other:1234", False),
    ],
)
def test_a_running_job_is_compared_by_the_numbers_of_its_address(names, monkeypatch, given, running, same):
    names["localhost"] = ["::1", "127.0.0.1"]
    runtime = {"place_in_job": (1, 2), "coordinator_address": running, "configure_joined": None}
    for name, value in runtime.items():
        monkeypatch.setattr(joining.jax_runtime, name, lambda *arguments, value=value: value)
    monkeypatch.setattr(joining, "host_and_port", lambda address: ("", 0))
    monkeypatch.setattr(joining.socket, "create_connection", lambda *arguments: socket.socket())
    with contextlib.nullcontext() if same else pytest.raises(ClusterError, match=f"job_addresses={re.escape(given)}"):
        joining._take_over(JobArguments((given,), 2, 1))


def test_an_address_that_is_chosen_is_the_one_of_the_coordinators_machine_alone(names, monkeypatch):
    monkeypatch.setenv(addresses.BIND_VARIABLE, "10.0.0.5:99")
    found = coordinator("first:1")
    assert found.reached == found.bound == "10.0.0.5:99" and found.note() is None
    names["first"] = ["10.1.0.1"]  # on another machine
    assert coordinator("first:1").reached == "first:1"
    assert str(coordinator("first:1")) == "first:1 (here 10.1.0.1)"


def test_gloo_listens_where_others_reach_it_if_the_coordinator_listens_everywhere(names, monkeypatch):
    monkeypatch.setenv(addresses.BIND_VARIABLE, "[::]:1")
    found = coordinator("first:1")
    assert (found.bound, found.reached) == ("[::]:1", "10.0.0.1:1")


@pytest.mark.parametrize("value", ["10.0.0.1", "", "10.0.0.1:", "10.0.0.1:http", ":1"])
def test_an_address_to_listen_on_has_a_port(names, monkeypatch, value):
    monkeypatch.setenv(addresses.BIND_VARIABLE, value)
    with pytest.raises(ClusterError, match='JAX_COORDINATOR_BIND_ADDRESS must be "host:port"'):
        coordinator("first:1")


def test_without_another_address_the_coordinator_listens_as_given_and_says_who_does_not_reach_it(names, monkeypatch):
    monkeypatch.setattr(addresses, "own_address_towards", lambda hosts: None)
    found = coordinator("first:1")
    assert found.reached == found.bound == "first:1"
    assert "where no other machine reaches it, so the coordinator listens there all the same" in found.note()


def test_the_own_name_in_a_list_of_all_addresses_is_no_address_for_gloo_either(monkeypatch):
    attempt = joining._Attempt(JobArguments(("a:1", "b:2"), 2, 1), 0)
    monkeypatch.setattr(joining, "check_can_listen", lambda address: {"b:2": "127.0.1.1"}[address])
    assert attempt._listening_host("10.0.0.2") == "10.0.0.2"
    assert attempt._listening_host("127.0.0.1") == "127.0.1.1"  # one machine
    monkeypatch.setattr(joining, "check_can_listen", lambda address: "10.1.0.2")
    assert attempt._listening_host("10.0.0.2") == "10.1.0.2"


@pytest.mark.slow
def test_who_does_not_reach_the_coordinator_says_in_time_what_it_resolved_and_tried(monkeypatch, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        monkeypatch.setattr(addresses, "numbers_of", lambda host: ["192.0.2.1"])
        monkeypatch.setattr(joining, "host_and_port", lambda address: ("127.0.0.1", port))
        monkeypatch.setattr(joining, "_REPORT_EVERY_S", 0.1)
        attempt = joining._Attempt(JobArguments((f"first:{port}",), 2, 1), joining.time.monotonic() + 1)
        monkeypatch.setattr(joining, "_claims", [])
        with pytest.raises(ClusterError) as error:
            attempt.await_coordinator(f"first:{port}", 1, 2)
        joining._claims.pop().close()
    where = f"process 0 of 2 at first:{port} (here 192.0.2.1)"
    assert f"waiting for {where}: [Errno 111] Connection refused since" in capfd.readouterr().err
    assert f"the coordinator at first:{port} (here 192.0.2.1)" in error.value.summary
    assert "set JAX_COORDINATOR_BIND_ADDRESS there" in error.value.fix


LISTENS = """
import json, os, sys
import numpy as np
from jax.experimental import multihost_utils
import keras_dist as kd
from tests.sockets import listening

kd.initialize(sys.argv[1], 3, int(sys.argv[2]), initialization_timeout_s=60)
gathered = multihost_utils.process_allgather(np.ones(1))
print(json.dumps([gathered.tolist(), kd.distribution.cluster().coordinator, listening(os.getpid())]))
multihost_utils.process_allgather(np.ones(1))  # all have looked
"""


def namespaces():
    """Whether processes can have an /etc/hosts of their own here."""
    command = ["unshare", "-m", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    return shutil.which("unshare") and not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.multiprocess
@pytest.mark.parametrize("bound", [None, "0.0.0.0"])
def test_machines_whose_own_name_is_127_0_1_1_are_reached_by_others(tmp_path, bound):
    if ROUTED is None or ":" in ROUTED or not namespaces():
        pytest.skip("needs root, unshare of util-linux, and a default route")
    port = free_address().rpartition(":")[2]
    for node, number in enumerate(["127.0.1.1", ROUTED]):
        text = f"{number} first\n" + pathlib.Path("/etc/hosts").read_text()
        (tmp_path / f"hosts{node}").write_text(text)
    variables = environment(1) | ({} if bound is None else {addresses.BIND_VARIABLE: f"{bound}:{port}"})
    started = []
    for process, node in enumerate([0, 1, 0]):
        command = f'mount --bind {tmp_path}/hosts{node} /etc/hosts && exec "$0" "$@"'
        python = [sys.executable, "-c", LISTENS, f"first:{port}", str(process)]
        started.append(
            subprocess.Popen(
                ["unshare", "-m", "sh", "-c", command, *python], cwd=ROOT, env=variables, start_new_session=True,
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    try:
        ended = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert [process.returncode for process in started] == [0] * 3, ended
    found = [json.loads(output.splitlines()[-1]) for output, _ in ended]
    assert [gathered for gathered, *_ in found] == [[[1], [1], [1]]] * 3
    assert [where for _, where, _ in found] == [f"{ROUTED}:{port}", f"first:{port}", f"{ROUTED}:{port}"]
    hosts = [{host for host, _ in listens} for *_, listens in found]
    assert hosts[1:] == [{ROUTED}] * 2 and hosts[0] - {"::"} == {ROUTED, bound or ROUTED}  # gRPC listens on all by ::
    notes = [f"listens on {ROUTED}:{port} instead" in errors for _, errors in ended]
    assert notes == [bound is None, False, False]
