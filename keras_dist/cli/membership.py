"""`Membership`: the processes and nodes that take part in the next start of a job.

A process of this node is absent if it fails before its first step right after a restart. The job then starts without
it, if `--min-processes` are left, and with it again after a later save.

With `--min-nodes` the launcher of node 0 listens on the port after the coordinator's. Before each start the others call
it with a line of JSON, and the answer is the number of processes on each node. Messages are data of bounded size:
anything else is ignored, with a line on stderr. Anyone who reaches the port can delay the job, so keep it private.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self

from keras_dist.cli.nodes import NodePosition
from keras_dist.errors import ClusterError, shorten
from keras_dist.jobs.addresses import BIND_VARIABLE, CoordinatorAddress, host_and_port

_POLL_S, _SAY_S = 0.1, 15.0
_CALL_AGAIN_S = 1.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 30.0, 3600.0  # between attempts with an absent process
_CALL_S = 5.0  # for a launcher to connect, and to write its line
_LIMIT_BYTES, _LIMIT_ANSWER_BYTES = 512, 2**16
_LIMIT_CALLERS = 4096
_LIMIT_PROCESSES = 2**16
_LAST_PORT = 2**16 - 1


class AbsentNodesError(Exception):
    """Too few nodes are there to start the job."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes of one start of the job; none once it has succeeded."""

    counts: Mapping[int, int]  # number of processes on each node that takes part
    slots: tuple[int, ...]  # of the processes of this node: their indices on the node in a job with all processes
    rank: int = 0

    @property
    def total(self) -> int:
        """Number of processes."""
        return sum(self.counts.values())

    @property
    def first(self) -> int:
        """Index in the job of the first process of this node."""
        return sum(count for node, count in self.counts.items() if node < self.rank)

    def nodes_of(self, processes: Collection[int]) -> list[int]:
        """Return the nodes of processes of the job."""
        owners = [node for node in sorted(self.counts) for _ in range(self.counts[node])]
        return sorted({owners[process] for process in processes if process < self.total})


class Membership:
    """The processes of this node that take part; here in a job whose nodes all must be there."""

    def __init__(self, place: NodePosition, processes: int, least: int) -> None:
        self.place, self.processes, self._least = place, processes, least
        self.slots = [*range(processes)]
        self.is_elastic = least < processes  # whether the number of processes may change
        self._attempts, self._retry_at = 0, 0.0

    @property
    def largest(self) -> int:
        """Number of processes of the whole job when none is absent."""
        return self.place.nodes * self.processes

    def gather(self, *, grows: bool) -> Group | None:
        """Return the processes of the next start, all if it `grows`; None after a signal. AbsentNodesError: too few."""
        if grows and self._may_retry():
            self.slots = [*range(self.processes)]
        return self._assemble()

    def lose(self, slots: Collection[int]) -> bool:
        """Leave these processes out of the next start; return whether enough are left."""
        left = [slot for slot in self.slots if slot not in slots]
        if len(left) == len(self.slots) or len(left) < self._least:
            return False
        self._leave_out(left)
        return True

    def note_step(self) -> None:
        """Note that the job trains."""
        if len(self.slots) == self.processes:
            self._attempts = 0

    def wants_growth(self) -> bool:
        """Whether the job should save and end, to restart with more processes."""
        return self._may_retry()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def finish(self) -> None:
        """Note that the job has succeeded."""

    def close(self) -> None:
        """Leave the job."""

    def _may_retry(self) -> bool:
        return len(self.slots) < self.processes and time.monotonic() >= self._retry_at

    def _leave_out(self, left: list[int]) -> None:
        wait = min(_FIRST_RETRY_S * 2 ** (self._attempts - 1), _LONGEST_RETRY_S) if self._attempts else 0.0
        self.slots, self._retry_at, self._attempts = left, time.monotonic() + wait, self._attempts + 1

    def _assemble(self) -> Group | None:
        nodes = range(self.place.nodes)
        counts = {node: len(self.slots) if node == self.place.rank else self.processes for node in nodes}
        return Group(counts, tuple(self.slots), self.place.rank)


class NodeMembership(Membership):
    """Base of the membership of nodes that may stay away."""

    def __init__(
        self,
        place: NodePosition,
        processes: int,
        least: int,
        least_nodes: int,
        timeout_s: float,
        stopped: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(place, processes, least)
        self.is_elastic = True
        self._least_nodes, self._timeout_s, self._stopped, self._say = least_nodes, timeout_s, stopped, say
        self._host, port = host_and_port(place.coordinator or "")
        self._port = _port_after(port)

    def _polls(self, what: str, every_s: float = 0.0) -> Iterator[float]:
        """Yield the time that has passed, until a signal; say every 15 seconds what is awaited."""
        begin = said = time.monotonic()
        while not self._stopped():
            now = time.monotonic()
            yield now - begin
            if now - said >= _SAY_S:
                said = now
                self._say(f"waits for {what} since {now - begin:.0f} s")
            time.sleep(every_s or _POLL_S)


@dataclasses.dataclass
class _Caller:
    """A connection to the launcher of node 0."""

    socket: socket.socket
    host: str
    since: float
    received: bytes = b""
    node: int | None = None  # once its line has been read
    processes: int = 0


class FirstNode(NodeMembership):
    """The membership on node 0, which the launchers of other nodes call."""

    def __init__(self, place: NodePosition, processes: int, *options: Any) -> None:
        super().__init__(place, processes, *options)
        host, _ = host_and_port(CoordinatorAddress(place.coordinator or "", place.nodes).bound)
        try:
            family = socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, self._port), family=family, backlog=128)
        except (OSError, UnicodeError) as error:
            given = f"'{host}:{self._port}', the port after the coordinator's: {error}"
            fix = f"--coordinator with an address of this machine and two free ports in a row, or {BIND_VARIABLE}"
            raise ClusterError("node 0 cannot listen for the other nodes", given=given, fix=fix) from error
        self._listener.setblocking(False)
        self._callers: list[_Caller] = []
        self._expected = {*range(1, place.nodes)}
        self._counts: Mapping[int, int] = {}

    def wants_growth(self) -> bool:
        """Whether a process of this node may be back, or another node has called that does not take part."""
        return super().wants_growth() or any(count > self._counts.get(node, 0) for node, count in self._calls().items())

    def finish(self) -> None:
        """Let the nodes that wait for a place exit with 0."""
        self._calls()
        self._answer({})

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        for caller in self._callers:
            caller.socket.close()

    def _assemble(self) -> Group | None:
        for passed in self._polls("the launchers of other nodes"):
            calls = self._calls()
            enough = 1 + len(calls) >= self._least_nodes
            if passed >= self._timeout_s and not enough:
                absent = ", ".join(str(node) for node in range(1, self.place.nodes) if node not in calls)
                raise AbsentNodesError(f"node {absent} stayed away for {self._timeout_s:g} s")
            if enough and (passed >= self._timeout_s or self._expected <= {*calls}):
                break
        else:
            return None
        self._expected = {*calls}
        self._answer({0: len(self.slots), **dict(sorted(calls.items()))})
        return Group(self._counts, tuple(self.slots))

    def _answer(self, counts: Mapping[int, int]) -> None:
        """Tell the nodes that wait how many processes each node has; none after the end of the job."""
        self._counts = counts
        answer = json.dumps([*counts.items()]).encode() + b"\n"
        for caller in [one for one in self._callers if one.node is not None]:
            with contextlib.suppress(OSError):  # it has exited: its processes will be absent
                caller.socket.settimeout(_CALL_S)
                caller.socket.sendall(answer)
            self._hang_up(caller)

    def _calls(self) -> dict[int, int]:
        """Read what is there; return the number of processes on each node that waits for an answer."""
        with contextlib.suppress(OSError):  # nobody else calls
            while len(self._callers) < _LIMIT_CALLERS:
                found, (host, *_) = self._listener.accept()
                found.setblocking(False)
                _keep_alive(found)
                self._callers.append(_Caller(found, host, time.monotonic()))
        for caller in [*self._callers]:
            self._read(caller)
        return {each.node: each.processes for each in self._callers if each.node is not None}

    def _read(self, caller: _Caller) -> None:
        try:
            received = caller.socket.recv(_LIMIT_BYTES)
        except BlockingIOError:
            if caller.node is None and time.monotonic() - caller.since > _CALL_S:
                self._ignore(caller)
            return
        except OSError:
            received = b""
        caller.received += received
        line, is_line, rest = caller.received.partition(b"\n")
        if not received:  # closed
            self._hang_up(caller)
        elif caller.node is not None or rest or len(line) > _LIMIT_BYTES:
            self._ignore(caller)
        elif is_line:
            self._note(caller, line)

    def _note(self, caller: _Caller, line: bytes) -> None:
        match _decoded(line):
            case {"job": str(job), "node": int(node), "processes": int(count)} if (
                job == _name(self.place) and 0 < node < self.place.nodes and 0 <= count <= _LIMIT_PROCESSES
            ):
                for other in [one for one in self._callers if one.node == node]:
                    self._hang_up(other)
                self._expected.discard(node)
                caller.node, caller.processes = (node, count) if count else (None, 0)
                if not count:  # it stands aside
                    self._hang_up(caller)
            case _:
                self._ignore(caller)

    def _ignore(self, caller: _Caller) -> None:
        self._say(
            f"ignored a message from {caller.host} that no launcher of this job writes: {shorten(caller.received)}"
        )
        self._hang_up(caller)

    def _hang_up(self, caller: _Caller) -> None:
        caller.socket.close()
        if caller in self._callers:
            self._callers.remove(caller)


class OtherNode(NodeMembership):
    """The membership on another node, which calls the launcher of node 0."""

    def lose(self, slots: Collection[int]) -> bool:
        """Leave these processes out of the next start; with too few left, this node stands aside for a while."""
        if not super().lose(slots):
            self._attempts = max(self._attempts, 1)  # the others start without it first
            self._leave_out([])
        return True

    def close(self) -> None:
        """Tell node 0 not to wait for this node."""
        with contextlib.suppress(OSError, UnicodeError):
            self._call(0).close()

    def _assemble(self) -> Group | None:
        if not self.slots:
            self._stand_aside()
        seen = time.monotonic()  # node 0
        for _ in self._polls(f"node 0 at port {self._port} of {self._host}", _CALL_AGAIN_S):
            called_at = time.monotonic()
            try:
                with self._call(len(self.slots)) as called:
                    return self._answer(called)
            except (OSError, UnicodeError) as error:
                now = time.monotonic()
                seen = now if now - called_at > 2 * _CALL_S else seen
                if now - seen >= self._timeout_s:
                    summary = f"node 0, with the coordinator, stayed away for {self._timeout_s:g} s: {error}"
                    raise AbsentNodesError(summary) from error
        return None

    def _stand_aside(self) -> None:
        """Leave the job until its next attempt."""
        self.close()
        wait = max(self._retry_at - time.monotonic(), 0)
        self._say(f"node {self.place.rank} leaves the job for {wait:.0f} s, and then calls node 0 again")
        next((passed for passed in self._polls("its next attempt") if passed >= wait), None)
        self.slots = [*range(self.processes)]

    def _call(self, processes: int) -> socket.socket:
        """Call node 0, to take part with so many processes."""
        called = socket.create_connection((self._host, self._port), _CALL_S)
        _keep_alive(called)
        called.sendall(
            json.dumps({"job": _name(self.place), "node": self.place.rank, "processes": processes}).encode() + b"\n"
        )
        return called

    def _answer(self, called: socket.socket) -> Group | None:
        """Wait for the answer: the next start of the job; None after a signal."""
        called.settimeout(_POLL_S)
        received = b""
        while not received.endswith(b"\n"):
            if self._stopped():
                return None
            with contextlib.suppress(TimeoutError):
                more = called.recv(_LIMIT_ANSWER_BYTES)
                received += more
                if not more or len(received) > _LIMIT_ANSWER_BYTES:
                    raise ConnectionError(f"the launcher of node 0 has hung up after {shorten(received)}")
        match _decoded(received):
            case [*pairs] if all(_is_count(pair, self.place.nodes) for pair in pairs):
                group = Group(dict(pairs), tuple(self.slots), self.place.rank)
                if not pairs or group.counts.get(self.place.rank) == len(self.slots):
                    return group
        raise ConnectionError(f"no launcher of this job answers {shorten(received)}")


def _keep_alive(connection: socket.socket) -> None:
    """Notice within a minute that the other machine is gone: an answer may take as long as the job runs."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_count(pair: object, nodes: int) -> bool:
    match pair:
        case [int(node), int(count)]:
            return 0 <= node < nodes and 0 < count <= _LIMIT_PROCESSES
        case _:
            return False


def _decoded(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _name(place: NodePosition) -> str:
    """Return the name of the job in messages."""
    return f"keras_dist, {place.nodes} nodes, port {(place.coordinator or '').rpartition(':')[2]}"


def _port_after(port: int) -> int:
    return port + 1 if port < _LAST_PORT else port - 1
