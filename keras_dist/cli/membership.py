"""`Membership`: the processes and nodes that take part in the next start of a job.

A process of this node is absent if it fails before its first step right after a restart. The job then starts without
it, if `--min-processes` are left, and with it again after a later save.

With `--min-nodes` the launcher of node 0 listens on the port after the coordinator's. Before each start the others call
it with a line of JSON. The answer is their place in the start, or the exit code of a job that has ended. Messages are
data of bounded size: anything else is ignored, with a line on stderr. Anyone who reaches the port can delay the job, so
keep it private.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from keras_dist.cli.nodes import NodePosition
from keras_dist.errors import ClusterError, shorten
from keras_dist.jobs.addresses import BIND_VARIABLE, CoordinatorAddress, host_and_port

_POLL_S, _SAY_S = 0.1, 15.0
_CALL_AGAIN_S = 1.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 30.0, 3600.0  # between attempts with an absent process
_CALL_S = 5.0  # for a launcher to connect, and to write its line
_LIMIT_BYTES, _LIMIT_ANSWER_BYTES = 512, 2**16
_LIMIT_PROCESSES = 2**16
_LAST_PORT = 2**16 - 1
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # an answer may take as long as the job


class AbsentNodesError(Exception):
    """Too few nodes are there to start the job."""


class JobEndedError(Exception):
    """The job has ended without this node, with the exit code `args[0]`."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes of one start of the job."""

    slots: tuple[int, ...]  # of the processes of this node: their indices on the node in a job with all processes
    first: int = 0  # index in the job of the first process of this node
    total: int = 0
    absent: tuple[int, ...] = ()  # nodes that do not take part


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
        """Return the processes of the next start, all if it `grows`; None after a signal.

        Raises:
            AbsentNodesError: there are too few nodes.
            JobEndedError: the job has ended while this node waited for a place in it.
        """
        if grows and Membership.wants_growth(self):
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
        return len(self.slots) < self.processes and time.monotonic() >= self._retry_at

    def close(self, code: int = os.EX_TEMPFAIL) -> None:
        """Leave the job, which has ended with this exit code; 75 if it is to be started again."""

    def _leave_out(self, left: list[int]) -> None:
        wait = min(_FIRST_RETRY_S * 2 ** (self._attempts - 1), _LONGEST_RETRY_S) if self._attempts else 0.0
        self.slots, self._retry_at, self._attempts = left, time.monotonic() + wait, self._attempts + 1

    def _assemble(self) -> Group | None:
        absent = self.processes - len(self.slots)
        return Group(tuple(self.slots), self.place.rank * self.processes, self.largest - absent)


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
        self._port = port + 1 if port < _LAST_PORT else port - 1
        self._job = f"keras_dist, {place.nodes} nodes, port {port}"  # in messages

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
        self._callers: dict[int, socket.socket] = {}  # nodes that wait for an answer
        self._calls: dict[int, int] = {}  # number of processes on each of these nodes
        self._expected = {*range(1, place.nodes)}
        self._counts: dict[int, int] = {}  # number of processes on each node that takes part

    def wants_growth(self) -> bool:
        """Whether a process of this node may be back, or another node has called that does not take part."""
        self._listen()
        return super().wants_growth() or any(count > self._counts.get(node, 0) for node, count in self._calls.items())

    def close(self, code: int = os.EX_TEMPFAIL) -> None:
        """Stop listening. Nodes that wait for a place exit with the code of the job, unless it is started again."""
        with contextlib.suppress(OSError):  # closed before
            self._listen()
        for node in [*self._callers]:
            self._answer(node, code) if code != os.EX_TEMPFAIL else self._hang_up(node)
        self._listener.close()

    def _assemble(self) -> Group | None:
        for passed in self._polls("the launchers of other nodes"):
            self._listen()
            enough = 1 + len(self._calls) >= self._least_nodes
            if passed >= self._timeout_s and not enough:
                absent = ", ".join(str(node) for node in range(1, self.place.nodes) if node not in self._calls)
                raise AbsentNodesError(f"node {absent} stayed away for {self._timeout_s:g} s")
            if enough and (passed >= self._timeout_s or self._expected <= {*self._calls}):
                break
        else:
            return None
        self._expected = {*self._calls}
        self._counts = {0: len(self.slots), **dict(sorted(self._calls.items()))}
        firsts = [*itertools.accumulate(self._counts.values(), initial=0)]
        absent = [node for node in range(self.place.nodes) if node not in self._counts]
        for node, first in zip([*self._counts][1:], firsts[1:], strict=False):
            self._answer(node, [first, firsts[-1], absent])
        return Group(tuple(self.slots), 0, firsts[-1], tuple(absent))

    def _answer(self, node: int, answer: object) -> None:
        with contextlib.suppress(OSError):  # it has exited: its processes will be absent
            self._callers[node].settimeout(_CALL_S)
            self._callers[node].sendall(json.dumps(answer).encode() + b"\n")
        self._hang_up(node)

    def _hang_up(self, node: int) -> None:
        if node in self._callers:
            self._callers.pop(node).close()
            del self._calls[node]

    def _listen(self) -> None:
        """Note the nodes that call, and those that have hung up."""
        with contextlib.suppress(BlockingIOError):  # nobody else calls
            while True:
                self._note(*self._listener.accept())
        for node, caller in [*self._callers.items()]:
            try:
                caller.recv(1)
            except BlockingIOError:  # it waits
                continue
            except OSError:  # its machine is gone
                pass
            self._hang_up(node)

    def _note(self, caller: socket.socket, address: tuple[Any, ...]) -> None:
        """Note the call of another node; ignore what no launcher of the job writes."""
        received = b""
        with contextlib.suppress(OSError):
            caller.settimeout(_CALL_S)
            received = caller.recv(_LIMIT_BYTES)
        match _decoded(received):
            case {"job": self._job, "node": int(node), "processes": int(count)} if (
                0 < node < self.place.nodes and 0 <= count <= _LIMIT_PROCESSES
            ):
                self._hang_up(node)
                self._expected.discard(node)
                if count:  # else it stands aside
                    _keep_alive(caller)
                    caller.setblocking(False)
                    self._callers[node], self._calls[node] = caller, count
                    return
            case _:
                message = f"ignored a message from {address[0]} that no launcher of this job writes"
                self._say(f"{message}: {shorten(received)}")
        caller.close()


class OtherNode(NodeMembership):
    """The membership on another node, which calls the launcher of node 0."""

    def lose(self, slots: Collection[int]) -> bool:
        """Leave these processes out of the next start; with too few left, this node stands aside for a while."""
        if not super().lose(slots):
            self._attempts = max(self._attempts, 1)  # the others start without it first
            self._leave_out([])
        return True

    def close(self, code: int = os.EX_TEMPFAIL) -> None:
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
                    raise AbsentNodesError(f"{summary}; or the job has ended") from error
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
        message = {"job": self._job, "node": self.place.rank, "processes": processes}
        called.sendall(json.dumps(message).encode() + b"\n")
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
            case int(code) if 0 <= code < 2**8:
                raise JobEndedError(code)
            case [int(first), int(total), [*absent]] if 0 < first <= total - len(self.slots) and all(
                isinstance(node, int) for node in absent
            ):
                return Group(tuple(self.slots), first, total, tuple(absent))
        raise ConnectionError(f"no launcher of this job answers {shorten(received)}")


def _keep_alive(connection: socket.socket) -> None:
    """Notice within a minute that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
