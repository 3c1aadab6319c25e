"""`Compilers` compiles programs for a target, in several processes at the same time.

Settings and memory of compilers do not remain in this process.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from keras_dist._support import backend_environment
from keras_dist.errors import CompilationError, CompilationTimeoutError
from keras_dist.planner.targets import Target

_LARGEST_ANSWER = 2**28  # bytes, of some hundred thousand collectives
_NBYTES_OF_PROCESS = 2**32
"""Memory of a compiler: 1.7 GB for a step of 323 million parameters (libtpu 0.0.42)."""
_LEVELS = ("jax_optimization_level", "jax_memory_fitting_level")
"""Settings of JAX that change programs. With level O1, compiling takes an eighth of the time, but peaks differ."""


class Compilers:
    """Processes that compile for a target, as a context manager: all have ended when it ends, or this process does.

    A process that fails, or exceeds its time, is an error of its program alone.

    Args:
        target: the machine.
        most: largest number of processes at a time. By default one for each core and each 4 GiB of free memory.
    """

    def __init__(self, target: Target, most: int | None = None) -> None:
        self.target = target
        self._threads = ThreadPoolExecutor(most or most_processes())
        self._ends, self._end = os.pipe()  # closed where this process ends, in whatever way: the others read that

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        self._threads.shutdown(cancel_futures=True)
        os.close(self._ends)

    def submit(self, request: Mapping[str, Any], bytecode: bytes, timeout_seconds: float) -> Future[dict[str, Any]]:
        """Return the answer of a process to a request, with a time limit from now [s]."""
        return self._threads.submit(self._ask, request, bytecode, timeout_seconds, time.monotonic())

    def _ask(self, request: Mapping[str, Any], bytecode: bytes, timeout: float, began: float) -> dict[str, Any]:
        left = began + timeout - time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "request.json").write_text(json.dumps(request), "utf-8")
            (folder / "program.mlirbc").write_bytes(bytecode)
            command = [sys.executable, "-P", "-m", "keras_dist.planner._compile", name]
            options: Any = {"env": _environment_of(self.target), "stdin": self._ends, "stdout": subprocess.DEVNULL}
            try:
                done = subprocess.run(command, stderr=subprocess.PIPE, timeout=max(left, 0), check=False, **options)
            except subprocess.TimeoutExpired:
                summary = f"compiling for {self.target.name!r} took too long"
                given, fix = f"timeout_seconds={timeout:g}", "a larger `timeout_seconds`; the process was killed"
                raise CompilationTimeoutError(summary, given=given, fix=fix) from None
            answer = folder / "answer.json"
            if not answer.exists() or answer.stat().st_size > _LARGEST_ANSWER:
                lines = done.stderr.decode(errors="replace").strip().splitlines()
                reason = " ".join(lines[-3:]) or f"its process exited with code {done.returncode}"
                raise not_compiled(self.target, reason)
            return json.loads(answer.read_text("utf-8"))


def most_processes() -> int:
    """Return one for each core and each 4 GiB of free memory, and at least one."""
    cores = os.cpu_count() or 1
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # macOS
        return cores
    return max(1, min(cores, free // _NBYTES_OF_PROCESS))


def _environment_of(target: Target) -> dict[str, str]:
    """Return this process's environment variables without those for its devices, for a process that compiles."""
    environment = {name: value for name, value in os.environ.items() if name not in backend_environment.OF_DEVICES}
    environment |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "JAX_PLATFORMS": "cpu",
        **{name.upper(): str(getattr(jax.config, name)) for name in _LEVELS},
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TPU_SKIP_MDS_QUERY": "1",  # else libtpu waits for a metadata server, which only Google's machines have
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no process uses a TPU
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if target.platform == "cpu":
        environment |= {"JAX_NUM_CPU_DEVICES": str(target.device_count), "PJRT_NPROC": "2"}  # nothing runs on them
    return environment


def not_compiled(target: Target, reason: str) -> CompilationError:
    """Return the error for a program that cannot be compiled."""
    fix = f"lower it with `lowering_platforms=({target.platform!r},)`; the other tiers need no compilation"
    return CompilationError(f"the program cannot be compiled for {target.name!r}", given=reason[:2000], fix=fix)
