"""JAX's coordination service in a process of its own, so that the job outlives its first process for a while.

Where the service runs in the first process, as JAX starts it, the death of that process ends all others at once with
SIGABRT. Here it stays until they have heard of the death, saved what they write and told the user.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

_LISTENS = "listens"
_END = "end"
_MOMENT_S = 1.0
_LOG_LIMIT_BYTES = 2**20


class CoordinationService:
    """The service of a job, which listens when this returns.

    Args:
        address: `"host:port"` to listen on.
        processes: how many join.
        linger_s: how long it stays after the process that started it has died.
        options: further arguments of `jaxlib`'s `get_distributed_runtime_service`.

    Raises:
        RuntimeError: it does not listen; the message is what the service said.
    """

    def __init__(self, address: str, processes: int, linger_s: float, options: Mapping[str, Any]) -> None:
        described = {"address": address, "processes": processes, "linger_s": linger_s, "options": dict(options)}
        self._log, self._said = tempfile.TemporaryFile(), ""  # noqa: SIM115  # closed by shutdown
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(described)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},  # its log tells who did not come
            start_new_session=True,  # Ctrl-C is for the processes of the job
        )
        if (self._process.stdout or io.StringIO()).readline().strip() != _LISTENS:
            self.shutdown()
            raise RuntimeError((self.log().strip() or "the coordination service did not start").splitlines()[-1])

    def log(self) -> str:
        """The beginning of what the service has logged."""
        if not self._log.closed:
            self._log.seek(0)
            self._said = self._log.read(_LOG_LIMIT_BYTES).decode(errors="replace")
        return self._said

    def shutdown(self) -> None:
        """End the service, after a moment in which processes that are leaving the job can do so."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.communicate(f"{_END}\n")
        self.log()
        self._log.close()


def _serve(described: Mapping[str, Any]) -> None:
    """Serve until the process that started this says so, or has died."""
    from jaxlib import _jax  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]  # where JAX is not loaded

    service = _jax.get_distributed_runtime_service(
        described["address"], described["processes"], recoverable=True, **described["options"]
    )
    sys.stdout.write(f"{_LISTENS}\n")
    sys.stdout.flush()
    time.sleep(_MOMENT_S if sys.stdin.readline().strip() == _END else described["linger_s"])
    del service


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
