"""Programs in processes of their own."""

import os
import pathlib
import socket

from tests import forks

_COUNT = "--xla_force_host_platform_device_count"


def environment(devices: int | None = None) -> dict[str, str]:
    """What this run has set, without its fake devices: with so many others, or as for a program that makes its own."""
    of_devices = ("PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES")
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_COUNT)]
    flags += [] if devices is None else [f"{_COUNT}={devices}"]
    kept = {name: value for name, value in os.environ.items() if name not in of_devices}
    return kept | {"XLA_FLAGS": " ".join(flags)}


def killed_environment() -> dict[str, str]:
    """That of this run, for processes that may be killed while they write a program: nobody else reads theirs."""
    programs = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).with_name("killed")
    return os.environ | {"JAX_COMPILATION_CACHE_DIR": str(programs)}


SETUP = """
import sys
import jax
import numpy as np

process, processes, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if processes > 1:
    jax.distributed.initialize(
        f"127.0.0.1:{port}", processes, process, coordinator_bind_address=f"127.0.0.1:{port}",
        cluster_detection_method="deactivate", initialization_timeout=60,
    )
"""
"""Joins the job; then `process` is the index of this one of so many `processes`."""

END = """
print("done")
if processes > 1:
    jax.distributed.shutdown()
"""


def free_address() -> str:
    """An address of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Job:
    """Processes that run one program.

    Args:
        program: what they run, after `SETUP`.
        arguments: what it finds in `sys.argv[4:]`.
        processes: how many there are.
        devices: how many each of them has.
    """

    def __init__(self, program: str, *arguments: object, processes: int = 2, devices: int = 2) -> None:
        port = free_address().rpartition(":")[2]
        program = f"{SETUP}\n{program}\n{END}"
        env = environment(devices) | {"PJRT_NPROC": "32"}
        self.processes = [
            forks.Python("-c", program, index, processes, port, *arguments, env=env) for index in range(processes)
        ]

    def outcomes(self, timeout: float = 120) -> list[tuple[int, str, str]]:
        """The exit code of each process, and what it printed. None lives on."""
        return [process.outcome(timeout) for process in self.processes]


def run(program: str, *arguments: object, processes: int = 2, devices: int = 2) -> None:
    """Run a program in all processes of a job; fails when one fails."""
    for code, output, errors in Job(program, *arguments, processes=processes, devices=devices).outcomes():
        assert code == 0, errors[-3000:]
        assert "done" in output.splitlines()  # beside what Gloo says
