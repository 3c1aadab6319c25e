"""`LocalProcess`: one process of a job on this machine, with its log and notes."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, TextIO

from keras_dist._support.process_notes import NOTES_VARIABLE, ProcessNotes, request_file
from keras_dist._support.text_tables import available_width
from keras_dist.cli import process_tree

_COLOURS = ("36", "33", "32", "35", "34", "31")
_PLAIN = "\x1b[0m"
_LINES_KEPT = 50
_LIMIT_S = 5.0  # for a killed process to exit, and for its log to be read


_printing = threading.Lock()


def print_line(line: str, file: TextIO) -> None:
    """Print a line as a whole, from any thread; ignore a closed pipe."""
    with _printing, contextlib.suppress(OSError, ValueError):
        file.write(f"{line}\n")
        file.flush()


class LocalProcess:
    """A process that runs a command, and is killed when the launcher exits."""

    def __init__(
        self, index: int, command: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path
    ) -> None:
        self.index = index  # in the job
        self.code: int | None = None  # exit code, or minus the signal that ended the process
        self.has_failed = False  # by itself, before the launcher ended it
        self.log: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)  # last lines
        self._notes = folder / f"{index}.json"
        for path in (self._notes, request_file(self._notes)):
            path.unlink(missing_ok=True)
        bound = [sys.executable, "-I", "-S", process_tree.__file__, str(os.getpid())]
        self._process = subprocess.Popen(
            [*bound, *command],
            env={**os.environ, **environment, **_columns_after(f"[{index}] "), NOTES_VARIABLE: str(self._notes)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def notes(self) -> ProcessNotes:
        """The JSON notes that the process writes for its launcher."""
        return ProcessNotes.read(self._notes)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended the process; None while it runs."""
        self.code = self._process.poll()
        return self.code

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def ask_to_end(self) -> None:
        """Ask the process to end at its next save, as after a signal."""
        request_file(self._notes).touch()

    def kill(self) -> None:
        """Kill the process, and wait for its exit."""
        is_own = self.notes.blamed in (None, self.index)
        self.has_failed = is_own and self.poll() not in (None, 0, -signal.SIGABRT)  # JAX aborts when another has failed
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LIMIT_S)
        self.poll()

    def close(self) -> None:
        """Read the remaining log, after its writers have exited."""
        self._reader.join(_LIMIT_S)

    def end_described(self) -> str:
        """Describe how the process ended: its exit code or signal, or the given reason."""
        code, notes = self.code or 0, self.notes
        if code < 0:
            known = -code in [*signal.Signals]
            return f"was ended by {signal.Signals(-code).name if known else f'signal {-code}'}"
        if notes.failure is not None:
            return f"has failed: {notes.failure}"
        return notes.reason or f"ended with exit code {code}"

    def _read_log(self, lines: IO[str]) -> None:
        colour = f"\x1b[{_COLOURS[self.index % len(_COLOURS)]}m" if sys.stdout.isatty() else ""
        prefix = f"{colour}[{self.index}]{colour and _PLAIN}"
        for line in lines:
            self.log.append(line.rstrip("\n"))
            print_line(f"{prefix} {self.log[-1]}", sys.stdout)


def _columns_after(prefix: str) -> dict[str, str]:
    """Return `COLUMNS` for a process whose lines are printed after `prefix`."""
    width = available_width()
    return {} if width is None else {"COLUMNS": str(max(width - len(prefix), 1))}
