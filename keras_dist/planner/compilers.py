"""`Compilers`: processes that compile programs for a target, several at the same time.

Settings and memory of compilers do not remain in this process. It takes seconds to start a process, so each compiles
one program after another.
"""

from __future__ import annotations

import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from keras_dist._support import backend_environment
from keras_dist.errors import CompilationError, CompilationTimeoutError
from keras_dist.planner.targets import Target

Process = subprocess.Popen[bytes]

_LARGEST_ANSWER = 2**28  # bytes, of some hundred thousand collectives
_NBYTES_OF_PROCESS = 2**32
"""Memory of a compiler: 1.7 GB for a step of 323 million parameters (libtpu 0.0.42)."""
_LEVELS = ("jax_optimization_level", "jax_memory_fitting_level")
"""Settings of JAX that change programs. With level O1, compiling takes an eighth of the time, but peaks differ."""


class Compilers:
    """Processes that compile for a target, as a context manager. All have ended when the context ends.

    A process that exits, or exceeds the time of a program, is an error of this program alone.

    Args:
        target: the machine.
        most: largest number of processes. By default one for each core and each 4 GiB of free memory.
    """

    def __init__(self, target: Target, most: int | None = None) -> None:
        self.target, self._lock, self._is_open = target, threading.Lock(), True
        self._threads = ThreadPoolExecutor(most or _most_processes())
        self._folder = tempfile.TemporaryDirectory()
        self._idle = queue.SimpleQueue[Process]()
        self._logs: dict[Process, pathlib.Path] = {}

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_open = False
        for process in self._logs:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._logs:
            process.communicate()
        self._folder.cleanup()

    def submit(self, request: Mapping[str, Any], bytecode: bytes, timeout_seconds: float) -> Future[dict[str, Any]]:
        """Return the answer of a process to a request, with a time limit from now [s]."""
        return self._threads.submit(self._answer, request, bytecode, timeout_seconds, time.monotonic())

    def _answer(self, request: Mapping[str, Any], bytecode: bytes, timeout: float, began: float) -> dict[str, Any]:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._folder.name))
        (folder / "request.json").write_text(json.dumps(request), "utf-8")
        (folder / "program.mlirbc").write_bytes(bytecode)
        process = self._process()
        timer = threading.Timer(max(0.0, began + timeout - time.monotonic()), process.kill)
        timer.start()
        try:
            is_done = _asked(process, folder)
        finally:
            timer.cancel()
        answer = folder / "answer.json"
        if is_done and answer.exists() and answer.stat().st_size <= _LARGEST_ANSWER:
            self._idle.put(process)
            return json.loads(answer.read_text("utf-8"))
        process.kill()
        code = process.wait()
        if time.monotonic() >= began + timeout:
            summary = f"compiling for {self.target.name!r} took too long"
            given, fix = (
                f"timeout_seconds={request['timeout_seconds']:g}",
                "a larger time limit; the process was killed",
            )
            raise CompilationTimeoutError(summary, given=given, fix=fix)
        lines = self._logs[process].read_text("utf-8", errors="replace").strip().splitlines()
        raise not_compiled(self.target, " ".join(lines[-3:]) or f"its process exited with code {code}")

    def _process(self) -> Process:
        """Return a process that waits for a request."""
        while not self._idle.empty():
            process = self._idle.get()
            if process.poll() is None:
                return process
        command = [sys.executable, "-P", "-m", "keras_dist.planner._compile"]
        with self._lock:
            if not self._is_open:
                raise CompilationError("the compilation was cancelled", given=self.target.name, fix="compile it again")
            log = pathlib.Path(self._folder.name, f"{len(self._logs)}.log")
            with log.open("wb") as errors:
                pipe, environment = subprocess.PIPE, _environment_of(self.target)
                process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors)
            self._logs[process] = log
        return process


def _asked(process: Process, folder: pathlib.Path) -> bool:
    """Let a process compile the program in a folder, and return whether it did before it ended."""
    if process.stdin is None or process.stdout is None:
        return False
    try:
        process.stdin.write(f"{folder}\n".encode())
        process.stdin.flush()
    except OSError:  # it has ended
        return False
    return bool(process.stdout.readline())


def _most_processes() -> int:
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
