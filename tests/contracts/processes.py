"""Programs run in a process of their own, without the settings of this test run."""

import os
import subprocess
import sys

from tests import forks

_OURS = ("XLA_FLAGS", "PJRT_NPROC", "NPROC", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")


def run_python(program: str, **environment: str) -> str:
    """What `program` prints in a process where nothing has been imported yet; fails when it fails."""
    command = [sys.executable, "-W", "error", "-c", program]
    ended = subprocess.run(command, env=_kept() | environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def run_fork(program: str, **environment: str) -> str:
    """What `program` prints in a process where everything has been imported, and nothing started."""
    ended = forks.python("-W", "error", "-c", program, env=_kept() | environment, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def _kept() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OURS} | {"JAX_PLATFORMS": "cpu"}
