"""`LocalProcess`: one process of a job on this machine, with its log and its notes."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, TextIO

from keras_dist._support.process_notes import NOTES_VARIABLE, ProcessNotes
from keras_dist._support.text_tables import available_width
from keras_dist.cli import process_tree

_COLOURS = ("36", "33", "32", "35", "34", "31")
_PLAIN = "\x1b[0m"
_LINES_KEPT = 50
_STOPPED_S = 1.0  # after which a stopped process counts as one that does not answer
_LIMIT_S = 5.0  # for a killed process to end, and for its log to be read


class Printer:
    """Prints lines of several threads, each whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def print(self, line: str, file: TextIO) -> None:
        """Print the line; where nobody reads any more, do nothing."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            file.write(f"{line}\n")
            file.flush()


class LocalProcess:
    """A process that runs a command, and is killed when this one dies.

    Args:
        index: which of the job's processes it is.
        command: a program and its arguments.
        environment: further variables.
        folder: where its notes are.
        printer: prints what it prints, after its index.

    Attributes:
        index: which of the job's processes it is.
        code: its exit code, or minus the signal that ended it; None while it runs.
        log: the last lines that it has printed.
    """

    def __init__(
        self, index: int, command: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path, printer: Printer
    ) -> None:
        self.index = index
        self.code: int | None = None
        self.log: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self._printer = printer
        self._stopped_since: float | None = None
        self._notes = folder / f"{index}.json"
        self._notes.unlink(missing_ok=True)
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
        """What it has noted."""
        return ProcessNotes.read(self._notes)

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        self.code = self._process.poll()
        return self.code

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, for a while already."""
        if self.code is not None or not process_tree.is_stopped(self._process.pid):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = time.monotonic()
        return self._stopped_since is not None and time.monotonic() - self._stopped_since >= _STOPPED_S

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it, and wait for that."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LIMIT_S)
        self.poll()

    def close(self) -> None:
        """Read the rest of its log, once nobody writes it any more."""
        self._reader.join(_LIMIT_S)

    def end_described(self) -> str:
        """How it ended, or why it is about to."""
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
            self._printer.print(f"{prefix} {self.log[-1]}", sys.stdout)


def _columns_after(prefix: str) -> dict[str, str]:
    """The width of this process's terminal for one whose lines are printed after `prefix`."""
    width = available_width()
    return {} if width is None else {"COLUMNS": str(max(width - len(prefix), 1))}
