"""Programs run in a process of their own, where nothing has been imported yet."""

import os
import subprocess
import sys

_OURS = ("XLA_FLAGS", "PJRT_NPROC", "NPROC", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")


def run_python(program: str, **environment: str) -> str:
    """What `program` prints, in an environment without the settings of this test run; fails when it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**kept, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
