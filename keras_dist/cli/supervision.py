"""`Supervisor`: starts the processes of a job, and starts them again when one dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from keras_dist._environment import PROGRESS_VARIABLE

_COLOURS = ("36", "33", "32", "35", "34", "31")
_POLL_S = 0.1
_END_S = 12.0  # in which processes end by themselves, once another has died: longer than they need to notice it
_TERM_S = 5.0
_LONGEST_BACK_OFF_S = 30.0


@dataclasses.dataclass
class Death:
    """One end of the job before its time.

    Attributes:
        process: who died first.
        how: its exit code or signal.
        restarted: whether the job was started again.
        saved: what the job goes on from, as far as the first process has said.
        to_next_step_s: seconds from the death to the next step of the job; None if none was done.
    """

    process: int
    how: str
    restarted: bool = False
    saved: str | None = None
    to_next_step_s: float | None = None


class Supervisor:
    """A job of local processes that run one script.

    Args:
        command: the script and its arguments.
        processes: how many.
        devices: fake CPU devices of each; None for those that JAX finds.
        max_restarts: how often the job is started again.
        hang_timeout_s: seconds without a step after which a process ends itself.
        report: a JSON file for the deaths, or None.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        *,
        devices: int | None = None,
        max_restarts: int = 3,
        hang_timeout_s: int = 600,
        report: str | None = None,
    ) -> None:
        self._command = [sys.executable, "-u", "-m", "keras_dist.cli.worker", str(os.getpid()), *command]
        self._count, self._devices, self._max_restarts = processes, devices, max_restarts
        self._hang_timeout_s, self._report = hang_timeout_s, report
        self._processes: list[subprocess.Popen[str]] = []
        self._writers: list[threading.Thread] = []
        self._print_lock = threading.Lock()
        self._deaths: list[Death] = []
        self._asked: int | None = None  # the signal that ends the job

    def run(self) -> int:
        """Run the job to its end, and return its exit code."""
        with self._signals(), tempfile.TemporaryDirectory() as folder:
            progress = pathlib.Path(folder, "progress.json")
            for restart in range(self._max_restarts + 1):
                self._start(progress)
                died = self._watch(progress)
                code = self._end()
                if died is None or self._asked is not None:
                    return 128 + self._asked if self._asked is not None else code
                process, how = died
                saved = _read(progress).get("saved")
                death = Death(process, how, saved=saved)
                stuck = restart > 0 and saved == self._deaths[-1].saved
                self._deaths.append(death)
                last = restart == self._max_restarts
                death.restarted = not (last or (stuck and restart > 1))
                self._say(f"process {process} {how}; saved: {saved or 'nothing'}")
                if not death.restarted:
                    why = "no progress between restarts" if not last else f"{self._max_restarts} restarts"
                    self._say(f"given up after {why}; the log of process {process} tells why it died")
                    self._write_report()
                    return self._codes[process] if 0 < self._codes[process] < 128 else 1
                self._write_report()
                pause = min(2.0**restart, _LONGEST_BACK_OFF_S) if stuck else 0.0
                self._say(f"restart {restart + 1} of {self._max_restarts}" + (f" in {pause:g} s" if pause else ""))
                self._sleep(pause)
        return 1

    @property
    def _codes(self) -> list[int]:
        return [process.returncode or 0 for process in self._processes]

    def _start(self, progress: pathlib.Path) -> None:
        """Start all processes, on a port that was free a moment ago."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._processes, self._writers = [], []
        for index in range(self._count):
            environment = {
                **os.environ,
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
                "KERAS_DISTRIBUTION_NUM_PROCESSES": str(self._count),
                "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
                "KERAS_DISTRIBUTION_HANG_TIMEOUT_S": str(self._hang_timeout_s),
                PROGRESS_VARIABLE: str(progress),
            }
            if self._devices is not None:
                environment["JAX_NUM_CPU_DEVICES"] = str(self._devices)
            process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # the launcher hears Ctrl-C, and ends them
            )
            self._processes.append(process)
            writer = threading.Thread(target=self._copy_log, args=(index, process.stdout), daemon=True)
            writer.start()
            self._writers.append(writer)

    def _watch(self, progress: pathlib.Path) -> tuple[int, str] | None:
        """Wait until all have ended well, or one has died: who, and how."""
        waits_for_step = bool(self._deaths)
        while self._asked is None:
            for index, process in enumerate(self._processes):
                if process.poll():
                    return self._first_death(index)
            if waits_for_step and _read(progress).get("step_since", 0.0) > self._ended_at:
                self._deaths[-1].to_next_step_s = round(time.time() - self._ended_at, 2)
                self._say(f"steps go on {self._deaths[-1].to_next_step_s:.1f} s after the death")
                self._write_report()
                waits_for_step = False
            if all(process.returncode == 0 for process in self._processes):
                return None
            time.sleep(_POLL_S)
        return None

    def _first_death(self, index: int) -> tuple[int, str]:
        """Who died first; those that ended because another had died have said so with their exit code."""
        self._ended_at = time.time()
        end = time.monotonic() + _END_S
        while any(process.poll() is None for process in self._processes) and time.monotonic() < end:
            if self._asked is not None:
                break
            time.sleep(_POLL_S)
        silent = [i for i, process in enumerate(self._processes) if process.returncode is None]
        if silent and self._codes[index] in (1, os.EX_TEMPFAIL) and len(silent) < self._count:
            return silent[0], "does not answer"
        return index, _described(self._codes[index])

    def _end(self) -> int:
        """End those that are left, and wait for their logs; the exit code of the job."""
        for number, patience in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            end = time.monotonic() + patience
            while any(process.poll() is None for process in self._processes) and time.monotonic() < end:
                time.sleep(_POLL_S)
        for writer in self._writers:
            writer.join(_TERM_S)
        return max(self._codes)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < end:
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the job."""

        def ask(number: int, frame: object) -> None:
            self._asked = number

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _copy_log(self, index: int, lines: IO[str]) -> None:
        colour = f"\x1b[{_COLOURS[index % len(_COLOURS)]}m" if sys.stdout.isatty() else ""
        for line in lines:
            with self._print_lock:
                sys.stdout.write(f"{colour}[{index}]{colour and chr(27) + '[0m'} {line}")
                sys.stdout.flush()

    def _say(self, text: str) -> None:
        with self._print_lock:
            sys.stderr.write(f"launch: {text}\n")
            sys.stderr.flush()

    def _write_report(self) -> None:
        if self._report is not None:
            content = {"processes": self._count, "deaths": [dataclasses.asdict(death) for death in self._deaths]}
            pathlib.Path(self._report).write_text(json.dumps(content, indent=2) + "\n")


def _described(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _read(progress: pathlib.Path) -> dict[str, Any]:
    """What the first process has said; nothing, if it has not."""
    try:
        found = json.loads(progress.read_text()[:100_000])
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
