"""The launchers of a job agree on the processes and nodes that take part in its next start."""

import concurrent.futures
import contextlib
import json
import pickle
import socket
import threading
import time

import pytest

from keras_dist.cli import membership
from keras_dist.cli.membership import AbsentNodesError, FirstNode, JobEndedError, Membership, OtherNode
from keras_dist.cli.nodes import NodePosition
from keras_dist.cli.restarts import Restarts
from keras_dist.cli.supervision import Job, Supervisor
from keras_dist.errors import ClusterError
from keras_dist.jobs import addresses


def pair_of_ports():
    """A port of this machine that is free, as is the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


def wait_until(done):
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


class Nodes:
    """The memberships of the nodes of a job, each on a thread while it waits."""

    def __init__(self, nodes=3, processes=2, least=1, least_nodes=2, timeout_s=60.0):
        self.said, self.stops = [], threading.Event()
        coordinator = f"127.0.0.1:{pair_of_ports()}"
        options = processes, least, least_nodes, timeout_s, self.stops.is_set, self.said.append
        kinds = [FirstNode] + [OtherNode] * (nodes - 1)
        self.nodes = [kind(NodePosition(nodes, rank, coordinator), *options) for rank, kind in enumerate(kinds)]
        self.threads = concurrent.futures.ThreadPoolExecutor(nodes)
        self.address = "127.0.0.1", int(coordinator.rpartition(":")[2]) + 1

    def start(self, *ranks, grows=False):
        """Let these nodes ask for their next start."""
        return [self.threads.submit(self.nodes[rank].gather, grows=grows) for rank in ranks]

    def places(self, *ranks, grows=False):
        """The index of the first process of each of these nodes, and the number of processes of the job."""
        groups = [one.result(30) for one in self.start(*ranks, grows=grows)]
        return [(group.first, group.total) for group in groups]


@pytest.fixture
def job(monkeypatch):
    """Makes nodes; nothing waits for long."""
    monkeypatch.setattr(membership, "_POLL_S", 0.01)
    made = []

    def make(**options):
        made.append(Nodes(**options))
        return made[-1]

    yield make
    for nodes in made:
        nodes.stops.set()
        for node in nodes.nodes[::-1]:
            node.close()
        nodes.threads.shutdown()


def test_all_nodes_get_their_places(job):
    nodes = job()
    assert nodes.places(2, 0, 1) == [(4, 6), (0, 6), (2, 6)]
    nodes.nodes[1].lose([0])
    assert nodes.nodes[1].slots == [1]
    assert nodes.places(0, 1, 2) == [(0, 5), (2, 5), (3, 5)]
    assert nodes.said == []


def test_the_job_starts_without_a_node_that_does_not_call_in_time_and_grows_when_it_has(job):
    nodes = job(timeout_s=1.0)
    assert nodes.places(0, 2) == [(0, 4), (2, 4)]
    assert not nodes.nodes[0].wants_growth()
    (back,) = nodes.start(1)
    wait_until(nodes.nodes[0].wants_growth)
    nodes.nodes[0]._timeout_s = 60
    assert nodes.places(0, 2) == [(0, 6), (4, 6)]
    assert (back.result(30).first, back.result().total) == (2, 6)
    assert not nodes.nodes[0].wants_growth()


def test_too_few_nodes_are_an_error_that_names_the_absent_ones(job):
    nodes = job(least_nodes=3, timeout_s=0.2)
    first, second = nodes.start(0, 1)
    with pytest.raises(AbsentNodesError, match=r"^node 2 stayed away for 0.2 s$"):
        first.result(30)
    nodes.nodes[0].close()
    with pytest.raises(AbsentNodesError, match=r"^node 0, with the coordinator, stayed away for 0.2 s: "):
        second.result(30)


@pytest.mark.parametrize("code", [0, 3])
def test_a_node_that_waits_for_a_place_learns_how_the_job_has_ended(job, code):
    nodes = job(timeout_s=1.0)
    nodes.places(0, 2)
    (waits,) = nodes.start(1)
    wait_until(nodes.nodes[0].wants_growth)
    nodes.nodes[0].close(code)
    with pytest.raises(JobEndedError) as ended:
        waits.result(30)
    assert ended.value.args == (code,)


def test_a_node_waits_on_for_a_job_that_is_started_again(job):
    nodes = job(timeout_s=0.5)
    nodes.places(0, 2)
    (waits,) = nodes.start(1)
    wait_until(nodes.nodes[0].wants_growth)
    nodes.nodes[0].close(75)
    with pytest.raises(AbsentNodesError, match=r"; or the job has ended$"):
        waits.result(30)


def test_those_who_wait_say_for_whom(job, monkeypatch):
    monkeypatch.setattr(membership, "_SAY_S", 0.0)
    nodes = job(timeout_s=0.2, least_nodes=3)
    with pytest.raises(AbsentNodesError):
        nodes.start(0)[0].result(30)
    assert nodes.said[0].startswith("waits for the launchers of other nodes since 0 s")


def test_node_0_listens_where_others_reach_it(monkeypatch):
    """Debian's own name is 127.0.1.1."""
    monkeypatch.delenv(addresses.BIND_VARIABLE, raising=False)
    monkeypatch.setattr(addresses, "numbers_of", lambda host: ["127.0.1.1"])
    monkeypatch.setattr(addresses, "own_address_towards", lambda hosts: "127.0.0.9")
    node = FirstNode(NodePosition(2, 0, f"node0:{pair_of_ports()}"), 1, 1, 1, 1.0, bool, print)
    try:
        assert node._listener.getsockname()[0] == "127.0.0.9"
    finally:
        node.close()


def test_one_node_needs_no_others():
    supervisor = Supervisor(Job([], min_nodes=1))
    assert type(supervisor._membership()) is Membership


def test_a_report_never_replaces_a_device(tmp_path):
    report = tmp_path / "report"
    report.symlink_to("/dev/null")
    assert Restarts(3, report, {}).write() is None
    assert report.is_symlink()


def test_nobody_waits_for_a_node_that_has_left(job):
    nodes = job()
    nodes.places(0, 1, 2)
    nodes.nodes[2].close()
    assert nodes.places(0, 1) == [(0, 4), (2, 4)]


def test_a_node_with_too_few_processes_stands_aside_and_calls_again(job):
    nodes = job(processes=1)
    nodes.places(0, 1, 2)
    nodes.nodes[1].lose([0])
    (aside,) = nodes.start(1)
    assert nodes.places(0, 2) == [(0, 2), (1, 2)]
    assert nodes.said == ["node 1 leaves the job for 30 s, and then calls node 0 again"]
    assert not nodes.nodes[0].wants_growth()
    nodes.stops.set()
    assert aside.result(30) is None
    nodes.stops.clear()
    (back,) = nodes.start(1)
    wait_until(nodes.nodes[0].wants_growth)
    assert nodes.places(0, 2) == [(0, 3), (2, 3)]
    assert back.result(30).slots == (0,)


def test_a_signal_ends_every_wait(job):
    nodes = job()
    waits = nodes.start(0, 1)
    nodes.stops.set()
    assert [wait.result(30) for wait in waits] == [None, None]


HELLO = {"job": "keras_dist, 3 nodes, port {port}", "node": 1, "processes": 2}
FOREIGN = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a pickle": pickle.dumps({"node": 1}) + b"\n",
    "deep": b"[" * 500 + b"\n",
    "long": b'{"job": "' + b"x" * 2000,
    "no JSON": b"node 1\n",
    "another job": {**HELLO, "job": "keras_dist, 4 nodes, port 1"},
    "node 0": {**HELLO, "node": 0},
    "a node too many": {**HELLO, "node": 3},
    "text": {**HELLO, "node": "1"},
    "negative": {**HELLO, "processes": -1},
    "huge": {**HELLO, "processes": 10**9},
    "two lines": b"{}\n{}\n",
}


@pytest.mark.parametrize("message", FOREIGN.values(), ids=FOREIGN)
def test_a_message_that_no_launcher_writes_is_ignored_with_a_line(job, message):
    nodes = job()
    if isinstance(message, dict):
        message = (json.dumps(message) + "\n").replace("{port}", str(nodes.address[1] - 1)).encode()
    (first,) = nodes.start(0)
    with socket.create_connection(nodes.address, 30) as stranger:
        stranger.sendall(message)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    (line,) = nodes.said
    assert line.startswith("ignored a message from 127.0.0.1 that no launcher of this job writes: ") and len(line) < 300
    assert nodes.places(1, 2) == [(2, 6), (4, 6)]
    assert first.result(30).total == 6


def test_a_caller_that_writes_nothing_is_ignored(job, monkeypatch):
    monkeypatch.setattr(membership, "_CALL_S", 0.05)
    nodes = job(timeout_s=0.5)
    (first,) = nodes.start(0)
    with socket.create_connection(nodes.address, 30) as stranger:
        assert stranger.recv(1) == b""
    with pytest.raises(AbsentNodesError):
        first.result(30)
    assert len(nodes.said) == 1


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400\r\n", b"[0, 4, []]\n", b"[3, 4, []]\n", b'["2", 4, []]\n', b"[2, 4, [[0]]]\n", b"999\n"]
)
def test_an_answer_that_no_launcher_writes_is_not_taken(job, answer):
    nodes = job(timeout_s=0.2)
    nodes.nodes[0].close()
    with socket.create_server(nodes.address) as stranger:
        (other,) = nodes.start(1)
        stranger.settimeout(0.05)
        with contextlib.ExitStack() as open_ones:
            while not other.done():
                with contextlib.suppress(TimeoutError):
                    caller = open_ones.enter_context(stranger.accept()[0])
                    caller.sendall(answer)
                    caller.shutdown(socket.SHUT_WR)
        with pytest.raises(AbsentNodesError, match=r"^node 0, .* stayed away for 0.2 s: .*launcher"):
            other.result(30)


def test_a_port_that_is_taken_is_an_error():
    port = pair_of_ports()
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        pytest.raises(ClusterError, match=f"'127.0.0.1:{port + 1}', the port after the coordinator's"),
    ):
        FirstNode(NodePosition(2, 0, f"127.0.0.1:{port}"), 1, 1, 1, 1.0, bool, print)


def test_an_absent_process_is_tried_again_less_and_less_often(monkeypatch):
    now = 0.0
    monkeypatch.setattr(membership.time, "monotonic", lambda: now)
    members = Membership(NodePosition(), 4, 2)
    for wait in (0, 30, 60, 120):
        assert members.lose([1]) and not members.lose([1])
        assert members.gather(grows=False).slots == (0, 2, 3)
        assert members.wants_growth() == (wait == 0)
        now += wait
        assert members.wants_growth()
        assert members.gather(grows=False).total == 3  # after a failure
        assert members.gather(grows=True).slots == (0, 1, 2, 3)
        assert not members.wants_growth()
    members.note_step()  # with all
    assert members.lose([1]) and members.wants_growth()


def test_no_more_processes_are_left_out_than_allowed():
    members = Membership(NodePosition(), 4, 3)
    assert not members.lose([0, 1])
    assert members.lose([0]) and not members.lose([1])
    assert members.slots == [1, 2, 3]
    assert not Membership(NodePosition(), 4, 4).is_elastic
