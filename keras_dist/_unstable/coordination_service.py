"""JAX's coordination service in a separate process, so that a job outlives its first process for a moment.

JAX runs the service in the first process. When that process exits, jaxlib aborts all others at once with SIGABRT. The
separate service keeps running until they have noticed the failure, saved their state and logged the reason.

Seen with jax 0.10.2 and 0.12.0. Upstream: documented ("Process 0 is special"), https://github.com/jax-ml/jax/pull/39095.
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
    """The service of a job, with options of jaxlib; runs `linger_s` seconds longer than the process that started it.

    Raises RuntimeError, with the log of the service, if it does not listen on `address` (`"host:port"`).
    """

    def __init__(self, address: str, processes: int, linger_s: float, options: Mapping[str, Any]) -> None:
        described = {"address": address, "processes": processes, "linger_s": linger_s, "options": dict(options)}
        self._log, self._said = tempfile.TemporaryFile(), ""  # noqa: SIM115  # closed by shutdown
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(described)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},  # its log names missing processes
            start_new_session=True,  # Ctrl-C is for the processes of the job
        )
        if (self._process.stdout or io.StringIO()).readline().strip() != _LISTENS:
            self.shutdown()
            raise RuntimeError((self.log().strip() or "the coordination service did not start").splitlines()[-1])

    def log(self) -> str:
        """Return the beginning of the service's log."""
        if not self._log.closed:
            self._log.seek(0)
            self._said = self._log.read(_LOG_LIMIT_BYTES).decode(errors="replace")
        return self._said

    def shutdown(self) -> None:
        """Stop the service, a moment later, so that other processes can leave the job first."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.communicate(f"{_END}\n")
        self.log()
        self._log.close()


def _serve(described: Mapping[str, Any]) -> None:
    """Serve until the process that started this writes `_END` or exits."""
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
