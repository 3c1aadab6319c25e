"""`Supervisor`: starts the processes of a job on this node, and restarts them when one fails."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence

from keras_dist.cli import process_tree
from keras_dist.cli.local_process import LocalProcess, print_line
from keras_dist.cli.nodes import NodePosition
from keras_dist.errors import printable

_POLL_S = 0.1
_MOMENT_S = 2.0  # time for processes that raise the same error to exit
_CLOSE_S = 10.0  # time for a process that has raised an error to close its files
_NOTICE_S = 10.0  # time for processes of other nodes to notice a failure
_TELL_S = 6.0  # time for them to read of a failure: longer than their grace for the failed process
_GONE_S = 20.0  # a coordinator that answers after this time belongs to the next start
_ENOUGH = 3  # the third Ctrl-C ends all at once
_LONGEST_PAUSE_S = 30.0
_IN_VAIN = 2  # the launcher gives up after so many restarts in a row without a new save


@dataclasses.dataclass(frozen=True)
class Job:
    """Command and options of a job."""

    command: Sequence[str]
    processes: int = 1  # on each node
    place: NodePosition = dataclasses.field(default_factory=NodePosition)
    devices: int | None = None  # fake CPU devices of each process
    hang_timeout_s: int = 600  # 0 for no limit
    join_timeout_s: int = 60

    def environment(self, index: int, address: str) -> dict[str, str]:
        """Return the environment variables of one process."""
        found = {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(self.place.nodes * self.processes),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
            "KERAS_DISTRIBUTION_INITIALIZATION_TIMEOUT_S": str(self.join_timeout_s),
        }
        if self.hang_timeout_s:
            found["KERAS_DISTRIBUTION_HANG_TIMEOUT_S"] = str(self.hang_timeout_s)
        if self.place.coordinator is None:
            found["JAX_COORDINATOR_BIND_ADDRESS"] = address
        if self.devices is not None:
            found |= {"JAX_NUM_CPU_DEVICES": str(self.devices), "JAX_PLATFORMS": "cpu"}
        return found


@dataclasses.dataclass
class Failure:
    """The failure of a process, as an entry of the report."""

    process: int
    how: str  # exit code and error, or signal
    at: float  # Unix time when it was noticed, or of the last step of a process that hangs
    saved: str | None = None  # the checkpoint to resume from
    steps_lost: int = 0  # training steps of the first process of this node since the checkpoint
    restarted: bool = False
    to_next_step_s: float | None = None  # time from the failure to the next step


class Supervisor:
    """Supervisor of the processes of a job on one node; it writes failures to the JSON file `report`."""

    def __init__(
        self, job: Job, *, max_restarts: int = 3, grace_s: int = 30, report: pathlib.Path | None = None
    ) -> None:
        self._job, self._max_restarts, self._grace_s, self._report = job, max_restarts, grace_s, report
        self._processes: list[LocalProcess] = []
        self._failures: list[Failure] = []
        self._asked: int | None = None  # the first signal to this process
        self._saved_before: str | None = None  # before that signal
        self._presses = [0, 0]  # Ctrl-C to this process and to its parent, which may both get one

    def on_signal(self, number: int, is_forwarded: bool) -> None:
        """Send the first signal to the processes, which save; of later signals only a third Ctrl-C ends them."""
        self._presses[is_forwarded] += number == signal.SIGINT
        is_first, is_enough = self._asked is None, number == signal.SIGINT and self._presses[is_forwarded] >= _ENOUGH
        if is_first:
            self._asked = number
            self._saved_before = self._processes[0].notes.saved if self._processes else None
        if is_first or is_enough:
            for process in self._processes:
                process.send(number if is_first else signal.SIGKILL)

    def run(self) -> int:
        """Run the job, and return its exit code."""
        self._write_report()
        with tempfile.TemporaryDirectory(prefix="keras_dist_launch_") as folder:
            while True:
                self._start(pathlib.Path(folder))
                failure = self._watch()
                if self._asked:
                    return self._end_as_asked()
                self._end(failure)
                if failure is None:
                    self._look_whether_joined()
                    return 0
                notes = self._processes[0].notes
                failure.saved, failure.steps_lost = notes.saved, notes.steps - notes.saved_steps
                self._failures.append(failure)
                in_vain = self._restarts_in_vain()
                failure.restarted = len(self._failures) <= self._max_restarts and in_vain < _IN_VAIN
                self._write_report()
                self._say(f"process {failure.process} {failure.how}; saved: {failure.saved or 'nothing'}")
                if not failure.restarted:
                    return self._give_up(failure, in_vain)
                pause = min(2.0**in_vain, _LONGEST_PAUSE_S) if in_vain else 0.0
                self._say(f"restart {len(self._failures)} of {self._max_restarts}" + f" in {pause:g} s" * bool(pause))
                self._sleep(pause)
                if self._asked:
                    return os.EX_TEMPFAIL if self._asked == signal.SIGTERM else 128 + self._asked

    def _start(self, folder: pathlib.Path) -> None:
        """Start all processes of this node; a single node uses a free port."""
        place, count = self._job.place, self._job.processes
        command = [sys.executable, "-u", *self._job.command]
        address = place.coordinator or _free_address()
        self._processes = []
        for index in range(place.rank * count, (place.rank + 1) * count):
            if self._asked:
                break
            environment = self._job.environment(index, address)
            self._processes.append(LocalProcess(index, command, environment, folder))

    def _watch(self) -> Failure | None:
        """Wait until all processes have succeeded, or one has failed."""
        waits_for_step = bool(self._failures)
        while not self._asked:
            ended = [process for process in self._processes if process.poll()]
            if ended:
                return self._failure_of(ended)
            if waits_for_step:
                waits_for_step = not self._note_next_step()
            if all(process.code == 0 for process in self._processes):
                return None
            time.sleep(_POLL_S)
        return None

    def _look_whether_joined(self) -> None:
        """Warn if several processes succeeded without joining a job."""
        count = self._job.place.nodes * self._job.processes
        if count > 1 and not any(process.notes.joined for process in self._processes):
            self._say("no process has called keras_dist.initialize(): each ran alone, not as one job")

    def _note_next_step(self) -> bool:
        """Note the first step after the last failure, and return whether there was one."""
        since, last = self._processes[0].notes.first_step_at, self._failures[-1]
        if since is None:
            return False
        last.to_next_step_s = round(since - last.at, 2)
        self._say(f"first step {last.to_next_step_s:.1f} s after the failure; steps lost: {last.steps_lost}")
        self._write_report()
        return True

    def _failure_of(self, ended: Sequence[LocalProcess]) -> Failure:
        """Return the first failure; processes that exited because of another one have recorded its index."""
        now = time.time()
        failed = [process for process in ended if process.notes.blamed in (None, process.index)]
        failed.sort(key=lambda process: process.code == -signal.SIGABRT)  # JAX aborts when another process has failed
        notes = ended[0].notes
        if not failed:
            failed = [process for process in self._processes if process.index == notes.blamed and process.notes.failure]
        if failed:
            return Failure(failed[0].index, failed[0].end_described(), now)
        at = min(now, self._processes[0].notes.step_at or now)
        return Failure(notes.blamed or 0, f"{notes.reason}, according to process {ended[0].index}", at)

    def _end(self, failure: Failure | None) -> None:
        """End the remaining processes, their children, and the coordination service."""
        if failure is not None:
            self._await_end(_CLOSE_S, [process for process in self._processes if process.notes.failure])
            self._await_end(_MOMENT_S, self._processes)
        for process in self._processes:
            process.kill()
        place = self._job.place
        if failure is not None and place.nodes > 1:
            if place.rank == 0:  # the coordination service must live until the other nodes have noticed
                silent = [process for process in self._processes if process.index == failure.process]
                self._sleep(_TELL_S if all(process.notes.failure for process in silent) else _NOTICE_S)
            else:
                self._await_end_of(place.coordinator or "")
        process_tree.end_descendants()
        for process in self._processes:
            process.close()

    def _await_end(self, seconds: float, processes: Sequence[LocalProcess]) -> None:
        """Wait until these processes have exited, at most `seconds`."""
        end = time.monotonic() + seconds
        while any([process.poll() is None for process in processes]):
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_S)

    def _await_end_of(self, coordinator: str) -> None:
        """Wait until the coordinator of the dead job is gone, so that no process joins it again."""
        host, _, port = coordinator.rpartition(":")
        end = time.monotonic() + _GONE_S
        while time.monotonic() < end and not self._asked:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
            except OSError:
                return
            self._sleep(_POLL_S)

    def _end_as_asked(self) -> int:
        """Wait for the processes after a signal, and return the exit code."""
        name = signal.Signals(self._asked or 0).name
        self._say(f"{name}: the processes have {self._grace_s} s to save and exit; the third Ctrl-C ends them at once")
        self._await_end(self._grace_s, self._processes)
        codes = [process.poll() for process in self._processes]
        self._end(None)
        self._write_report()
        if codes and all(code == 0 for code in codes):
            return 0
        saved = self._processes[0].notes.saved if codes else None
        if os.EX_TEMPFAIL in codes or saved != self._saved_before:
            return os.EX_TEMPFAIL
        fix = "raise --grace, or save more often: BackupAndRestore(save_freq=...)"
        self._say(f"nothing was saved after the signal; saved before: {saved or 'nothing'}; {fix}")
        return 128 + (self._asked or 0)

    def _give_up(self, failure: Failure, in_vain: int) -> int:
        """Print the reason and the log of the process that failed, and return an exit code other than 75."""
        failed = [process for process in self._processes if process.index == failure.process]
        for process in failed:
            self._say(f"the last lines of process {process.index}:\n" + "\n".join(f"  {line}" for line in process.log))
        why = f"{in_vain} restarts without a new save" if in_vain >= _IN_VAIN else f"{self._max_restarts} restarts"
        self._say(f"given up after {why}: process {failure.process} {failure.how}")
        code = failed[0].code or 1 if failed else 1
        return code if 0 < code < 128 and code != os.EX_TEMPFAIL else 1

    def _restarts_in_vain(self) -> int:
        """Return the number of last restarts without a new save."""
        saved = [failure.saved for failure in self._failures]
        return next((back for back, one in enumerate(saved[-2::-1]) if one != saved[-1]), len(saved) - 1)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._asked and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _say(self, text: str) -> None:
        place = self._job.place
        node = f"node {place.rank} ({socket.gethostname()}): " if place.nodes > 1 else ""
        print_line(printable(f"launch: {node}{text}"), sys.stderr)

    def _write_report(self) -> None:
        if self._report is not None:
            failures = [dataclasses.asdict(failure) for failure in self._failures]
            content = {"nodes": self._job.place.nodes, "processes": self._job.processes, "failures": failures}
            draft = self._report.with_name(f"{self._report.name}.draft")
            try:
                draft.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
                draft.replace(self._report)
            except OSError as error:  # must not end the job
                self._say(f"the report was not written: {error}")


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
