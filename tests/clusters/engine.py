"""`Engine`: programs of a cluster on this machine, in one folder and one process tree, and trials that run in it.

As a program it is the root of the tree: `python -m tests.clusters.engine` starts the commands that it reads, a line of
JSON each, and ends all of the tree when there are no more. So nothing outlives a test that is killed.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from keras_dist.cli.process_tree import run_guarded
from tests import sockets
from tests.processes import environment, killed_environment

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY, TRAIN = ROOT / "deploy", ROOT / "tests" / "clusters" / "train.py"
LIMIT_S = 240  # for what takes seconds on an idle machine
MOMENT_S = 60  # for processes of a job to exit after its end
_SYSTEM = ("/etc", "/run", "/tmp", "/dev/shm", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp")
_OURS = re.compile(r"munge|\bompi|openmpi|pmix|prte|slurm", re.IGNORECASE)


def require(package: str, *programs: str) -> None:
    """Skip the test if a program is missing."""
    for program in programs:
        if shutil.which(program, path=_path()) is None:
            pytest.skip(f"{program} is missing: apt-get install {package}")


def wait_until(condition, what, limit_s: float = LIMIT_S):
    """Return the first true value of `condition()`; `what()` describes the state of affairs when it takes too long."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, what()
        time.sleep(0.1)
    return found


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


class Engine:
    """A process tree and its folder; `close` ends both, and fails if a trial has left anything."""

    daemons: frozenset[str] = frozenset()  # names of programs that run until the end

    def __init__(self, folder: pathlib.Path, **variables: str) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        programs = killed_environment()["JAX_COMPILATION_CACHE_DIR"]
        self.env = environment() | {"PATH": _path(), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
        self.env |= {"JAX_COMPILATION_CACHE_DIR": programs, **variables}
        self._outside = _files_outside()
        self._log = (folder / "engine.log").open("w")
        self._root = subprocess.Popen(
            [sys.executable, "-m", "tests.clusters.engine"],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def start(self, *command: str, cwd: pathlib.Path | None = None, output: pathlib.Path | None = None) -> None:
        """Start a program in the tree; its exit code is written to `output` with the suffix `.code`."""
        line = {"command": command, "cwd": str(cwd or self.folder), "output": output and str(output)}
        self._root.stdin.write(json.dumps(line) + "\n")
        self._root.stdin.flush()

    def processes(self) -> list[psutil.Process]:
        """All processes of the tree that run, except the two of its root."""
        (server,) = psutil.Process(self._root.pid).children()
        return [child for child in server.children(recursive=True) if _runs(child)]

    def names(self) -> list[str]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(process.name())
        return found

    def wait_for_end_of_processes(self) -> None:
        """Wait until only the daemons of the engine run."""
        wait_until(lambda: {*self.names()} <= self.daemons, self.names, MOMENT_S)

    def close(self) -> None:
        """End the tree, after a check that no job has left anything, in it or outside of the folder."""
        try:
            self.wait_for_end_of_processes()
        finally:
            tree = [psutil.Process(self._root.pid), *self.processes()]
            listening = sockets.listening(self._root.pid)
            self._root.stdin.close()
            self._root.wait(60)
            self._log.close()
        assert not [process for process in tree if _runs(process)]
        assert not [pid for pid in psutil.pids() if _is_of(pid, str(self.folder))]
        for host, port in listening:
            with socket.socket() as probe:
                assert probe.connect_ex((host, port)), port
        assert not _files_outside() - self._outside


class Trial:
    """One training job: its folder, what it prints, and the losses that it must end with."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.output = folder, folder / "output"

    def printed(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the job has printed a text."""
        wait_until(lambda: self.printed().count(text) >= times, lambda: f"no {text!r} in:\n{self.printed()}")

    def wait_for_hold(self) -> list[psutil.Process]:
        """Wait until both processes are after the step, and return them."""
        files = [self.folder / "holds.0", self.folder / "holds.1"]
        wait_until(lambda: all(file.exists() for file in files), self.printed)
        return [psutil.Process(int(file.read_text())) for file in files]

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def code(self) -> int:
        """The exit code of the last program that was started with this output."""
        file = self.folder / "output.code"
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), self.printed)
        code = int(file.read_text())
        file.unlink()
        return code

    def losses(self) -> list[float]:
        """The losses that the job printed at its end."""
        found = re.findall(r"losses (\[.*\])", self.printed())
        assert len(found) == 1, self.printed()
        return json.loads(found[0])


def _path() -> str:
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])


def _files_outside() -> set[str]:
    """What the programs leave where they usually write."""
    found = (pathlib.Path(folder).glob("*") for folder in (*_SYSTEM, os.environ["HOME"], ROOT))
    names = {str(path) for paths in found for path in paths if _OURS.search(path.name)}
    return names | {str(path) for name in names if os.access(name, os.R_OK) for path in pathlib.Path(name).glob("*")}


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_of(pid: int, folder: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return folder in psutil.Process(pid).environ().get("TMPDIR", "")
    return False


def _reap() -> None:
    """Wait for adopted orphans, as process 1 of a machine does; Slurm takes zombies for processes that run."""
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
        time.sleep(0.05)


def _serve(folder: pathlib.Path) -> int:
    threading.Thread(target=_reap, daemon=True).start()
    started = []
    for line in sys.stdin:
        given = json.loads(line)
        output = given["output"]
        with open(output, "a") if output else contextlib.nullcontext() as file:
            command = given["command"]
            if output:  # a shell notes the exit code
                command = ["sh", "-c", '"$@"; echo $? > "$0.code"', output, *command]
            streams = {"stdout": file, "stderr": subprocess.STDOUT} if output else {}
            started.append(subprocess.Popen(command, cwd=given["cwd"], stdin=subprocess.DEVNULL, **streams))
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(_serve, lambda number, is_forwarded: None))
