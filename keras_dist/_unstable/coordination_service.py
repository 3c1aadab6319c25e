"""JAX's coordination service in a separate process, so that a job outlives its first process for a moment.

JAX runs the service in the first process. When that process exits, jaxlib aborts all others at once with SIGABRT. The
separate service keeps running until they have noticed the failure, saved their state and logged the reason. It blocks
signals: a scheduler that sends SIGTERM to all processes would end it before the others have saved.

A process may be silent for long on a loaded machine. So each keeps a connection to the service, which the system closes
when the process exits, and the service sends its index to the others.

Seen with jax 0.10.2 and 0.12.0. Upstream: documented ("Process 0 is special"), https://github.com/jax-ml/jax/pull/39095.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

_LISTENS = "listens"
_END = "end"
_LINGER_S = 10.0  # after the first process has left or exited, for the others to leave or to notice
_KEY_BYTES = 32  # with which a process connects: others who find the port must not end the job
_INDEX_BYTES = 8
_LOG_LIMIT_BYTES = 2**20


class CoordinationService:
    """The service of a job, with options of jaxlib; runs until all its processes have exited, or this one 10 s ago.

    `entrance` is the argument of `Connection`.

    Raises RuntimeError, with the log of the service, if it does not listen on `address` (`"host:port"`).
    """

    def __init__(self, address: str, processes: int, options: Mapping[str, Any]) -> None:
        described = {"address": address, "processes": processes, "options": dict(options)}
        self._log, self._said = tempfile.TemporaryFile(), ""  # noqa: SIM115  # closed by shutdown
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))  # inherited
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(described)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},  # its log names missing processes
            start_new_session=True,  # Ctrl-C is for the processes of the job
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        said, _, self.entrance = (self._process.stdout or io.StringIO()).readline().strip().partition(" ")
        if said != _LISTENS:
            self.shutdown()
            raise RuntimeError((self.log().strip() or "the coordination service did not start").splitlines()[-1])

    def log(self) -> str:
        """Return the beginning of the service's log."""
        if not self._log.closed:
            self._log.seek(0)
            self._said = self._log.read(_LOG_LIMIT_BYTES).decode(errors="replace")
        return self._said

    def shutdown(self) -> None:
        """Stop the service once the other processes have exited: jaxlib aborts those that have not left the job yet."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.communicate(f"{_END}\n")
        self.log()
        self._log.close()


class Connection:
    """The connection of a process to the coordination service of its job."""

    def __init__(self, host: str, entrance: str, process: int) -> None:
        port, _, key = entrance.partition(" ")
        self.exited = set[int]()  # processes whose connections are closed
        self.is_closed = False  # as the service has exited
        connection = socket.create_connection((host, int(port)), _LINGER_S)
        connection.sendall(f"{key}{process:0{_INDEX_BYTES}}".encode())
        connection.setblocking(False)
        # The system closes the file when the process has exited. Python would close a socket before: the service would
        # end, and jaxlib's client, whose callback needs the interpreter, would abort a process that is about to exit.
        self._file = connection.detach()
        os.register_at_fork(after_in_child=self._close)  # else it stays open in the child

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def look(self) -> None:
        """Read which processes have exited."""
        try:
            while index := os.read(self._file, _INDEX_BYTES):
                self.exited.add(int(index))
        except BlockingIOError:
            return
        except (OSError, ValueError):
            pass
        self.is_closed = True


async def _serve(described: Mapping[str, Any]) -> None:
    """Serve until the process that started this writes `_END` or exits."""
    from jaxlib import _jax  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]  # where JAX is not loaded

    address, processes = described["address"], described["processes"]
    service = _jax.get_distributed_runtime_service(address, processes, recoverable=True, **described["options"])
    key = secrets.token_hex(_KEY_BYTES // 2)
    connected: dict[bytes, asyncio.StreamWriter] = {}
    exited: set[bytes] = set()
    all_exited = asyncio.Event()

    def note_exit(index: bytes) -> None:
        exited.add(index)
        if len(exited) == processes:
            all_exited.set()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            said = await reader.readexactly(_KEY_BYTES + _INDEX_BYTES)
            if said[:_KEY_BYTES] != key.encode():
                return
            index = said[_KEY_BYTES:]
            connected[index] = writer
            writer.write(b"".join(exited))
            try:
                await reader.read(1)
            finally:
                del connected[index]
                for other in connected.values():
                    other.write(index)
                note_exit(index)

    entrance = await asyncio.start_server(attend, address.rpartition(":")[0].strip("[]"), 0)
    sys.stdout.write(f"{_LISTENS} {entrance.sockets[0].getsockname()[1]} {key}\n")
    sys.stdout.flush()
    if (await asyncio.to_thread(sys.stdin.readline)).strip() == _END:
        note_exit(f"{0:0{_INDEX_BYTES}}".encode())  # the first process waits for this one
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(all_exited.wait(), _LINGER_S)
    del service


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
