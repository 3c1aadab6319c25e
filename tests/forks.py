"""Python in forks of a process that has imported everything and started nothing: they spare each program the imports.

`python -m tests.forks` is that process, of which each worker has one from its first program on.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NUMBER = struct.Struct("i")


@functools.cache
def _server() -> socket.socket:
    """Start the process that is forked; it ends when this one does."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
        server = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(lambda: (ours.close(), server.wait()))
    return ours


class Python:
    """What `python` does with such arguments: `[-W action]`, then `-c program`, `-m module` or a file.

    JAX and keras_dist are imported already: of their settings in `env`, those count that are read when JAX starts, and
    the folder of compiled programs.
    """

    def __init__(self, *arguments: object, env: Mapping[str, str] = os.environ, cwd: str | os.PathLike = ".") -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  # `outcome` closes them
        self._guard, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_server(), [b"."], [file.fileno() for file in (*self._files, theirs)])
        request = [list(map(str, arguments)), dict(env), os.path.abspath(cwd)]
        self._guard.sendall(json.dumps(request).encode() + b"\n")
        (self.pid,) = NUMBER.unpack(self._guard.recv(NUMBER.size))

    def printed(self) -> tuple[str, str]:
        """What is in its output and among its errors by now."""
        output, errors = (os.pread(file.fileno(), 2**24, 0).decode() for file in self._files)
        return output, errors

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not select.select([self._guard], [], [], 0)[0]

    def outcome(self, timeout: float) -> tuple[int, str, str]:
        """Wait for its end: the exit code, or minus the signal that ended it; its output and errors."""
        self._guard.settimeout(timeout)
        try:
            (status,) = NUMBER.unpack(self._guard.recv(NUMBER.size))
            return os.waitstatus_to_exitcode(status), *self.printed()
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            for each in (self._guard, *self._files):
                each.close()


def python(*arguments: object, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `Python(*arguments, **options)` to its end, as `subprocess.run` does."""
    return subprocess.CompletedProcess([*map(str, arguments)], *Python(*arguments, **options).outcome(timeout))


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, which imports may start
        return os.fork()


def _next_program(requests: socket.socket) -> list[str]:
    """Fork for each program, and return its arguments in the fork. Its parent tells how it ends, and is a fork, too."""
    while True:
        message, files, *_ = socket.recv_fds(requests, 1, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            os._exit(0)
        if not _fork():
            break
        for file in files:
            os.close(file)
    requests.close()
    with socket.socket(fileno=files.pop()) as asks:
        arguments, environment, folder = json.loads(asks.makefile().readline())
        pid = _fork()
        if pid:
            asks.send(NUMBER.pack(pid))
            asks.send(NUMBER.pack(os.waitpid(pid, 0)[1]))
            os._exit(0)
    for standard, file in enumerate(files, 1):
        os.dup2(file, standard)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return arguments


def _run(arguments: list[str]) -> None:
    """Do what Python does with its arguments."""
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    sys.path.insert(0, "")
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(arguments[1], vars(sys.modules["__main__"]))
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _import_everything() -> None:
    import orbax.checkpoint  # noqa: F401, PLC0415

    import keras_dist  # noqa: PLC0415
    from keras_dist.datasets import digits  # noqa: F401, PLC0415  # and tfds

    for name in keras_dist.__all__:
        getattr(keras_dist, name)


if __name__ == "__main__":
    _import_everything()
    gc.freeze()  # what has been imported is neither copied nor looked at when a fork ends
    arguments = _next_program(socket.socket(fileno=int(sys.argv[1])))
    import jax

    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    _run(arguments)
