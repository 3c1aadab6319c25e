"""Processes that never outlive their launcher, on Linux, by the parent-death signal and the subreaper of `prctl(2)`.

As a program, `python process_tree.py PARENT command...`, it runs a command that is killed when its parent dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_AS_SIGTERM = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_SIGNALS = (signal.SIGINT, *_AS_SIGTERM)
_LIMIT_S = 10.0  # for a process in an uninterruptible call of the kernel
_POLL_S = 0.02


def run_guarded(act: Callable[[pathlib.Path], int], on_signal: Callable[[int, bool], None]) -> int:
    """Run `act` in a child process, whose descendants never outlive it or this process, and return its exit code.

    `act` is called with a temporary folder, which the process that outlives the other removes.

    The child calls `on_signal` for each SIGINT and SIGTERM that it or this process gets, with whether this one did: who
    signals both has signalled once. SIGHUP, of a terminal that is closed, and SIGUSR1, which `mpirun` forwards, count
    as SIGTERM. The code of a child that a signal ended is 128 plus the number of the signal.
    """
    import tempfile  # not where this file is a program, whose start each process awaits

    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until both processes have their handlers
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keras_dist_launch_"))
    guard, (forwarded, signals) = os.getpid(), os.pipe()
    child = os.fork()
    if not child:
        os._exit(_run_in_child(guard, act, on_signal, forwarded, folder))

    def forward(number: int, frame: object) -> None:
        os.write(signals, bytes([number]))

    for number in _SIGNALS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    while (ended := os.waitpid(-1, 0))[0] != child:
        pass  # process 1 of a container is the parent of what `kubectl exec` leaves behind
    code = os.waitstatus_to_exitcode(ended[1])
    _end_all(folder)
    return code if code >= 0 else 128 - code


def _run_in_child(
    guard: int,
    act: Callable[[pathlib.Path], int],
    on_signal: Callable[[int, bool], None],
    forwarded: int,
    folder: pathlib.Path,
) -> int:
    def note(number: int, is_forwarded: bool) -> None:
        if os.getppid() != guard:  # it has died, or its terminal: exit, even while a write blocks
            _end_all(folder)
            os._exit(128 + number)
        on_signal(signal.SIGTERM if number in _AS_SIGTERM else number, is_forwarded)

    def listen() -> None:
        while True:
            note(os.read(forwarded, 1)[0], True)

    code = 1
    try:
        os.setsid()  # so that Ctrl-C arrives once, from the parent
        _adopt_orphans()
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: note(number, False))
        end_with_parent(guard, signal.SIGHUP)
        threading.Thread(target=listen, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = act(folder)
    except BaseException:
        traceback.print_exc()
    end_descendants()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _end_all(folder: pathlib.Path) -> None:
    """Kill all descendants, and remove the folder of their notes."""
    end_descendants()
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def end_with_parent(parent: int, number: int) -> None:
    """Send this process the signal when its parent dies; exit if the parent has died already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit("its parent has died")


def end_descendants() -> None:
    """Kill all descendants of this process, and adopted orphans."""
    end = time.monotonic() + _LIMIT_S
    while (found := descendants()) and time.monotonic() < end:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_S)


def descendants() -> list[int]:
    """Return the descendants of this process and adopted orphans, with zombies; an empty list without `/proc`."""
    children: dict[int, list[int]] = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has exited
            fields = status.read_text("utf-8", errors="replace").rpartition(")")[2].split()  # names may have brackets
            parent = int(fields[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows in the loop
        found += children.get(pid, [])
    return found


def _adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a scheduler may send it to all processes; it is for the launcher
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    os.execv(sys.argv[2], sys.argv[2:])
