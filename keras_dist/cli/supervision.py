"""`Supervisor`: starts the processes of a job on this node, and restarts them when one fails."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Sequence

from keras_dist._support.process_notes import ProcessNotes
from keras_dist.cli import process_tree
from keras_dist.cli.local_process import LocalProcess, print_line
from keras_dist.cli.membership import AbsentNodesError, FirstNode, Group, JobEndedError, Membership, OtherNode
from keras_dist.cli.nodes import NodePosition
from keras_dist.cli.restarts import Failure, Restarts
from keras_dist.errors import ClusterError, printable
from keras_dist.jobs.addresses import answers

_POLL_S = 0.1
_MOMENT_S = 2.0  # time for processes that raise the same error to exit
_CLOSE_S = 10.0  # time for a process that has raised an error to close its files
_NOTICE_S = 10.0  # time for processes of other nodes to notice a failure
_TELL_S = 6.0  # time for them to read of a failure: longer than their grace for the failed process
_GONE_S = 20.0  # a coordinator that answers after this time belongs to the next start
_ENOUGH = 3  # the third Ctrl-C ends all at once
_USAGE = 2  # exit code
_UNFIT_MESH = "Shape does not match the number of devices"  # of the error
_UNFIT_STATE = "the number of processes that pass their own rows differs"  # of the error


@dataclasses.dataclass(frozen=True)
class Job:
    """Command and options of a job."""

    command: Sequence[str]
    processes: int = 1  # on each node
    min_processes: int | None = None  # on each node; None for all of them
    min_nodes: int | None = None
    place: NodePosition = dataclasses.field(default_factory=NodePosition)
    devices: int | None = None  # fake CPU devices of each process
    hang_timeout_s: int = 600  # 0 for no limit
    join_timeout_s: int = 60

    def environment(self, index: int, group: Group, address: str) -> dict[str, str]:
        """Return the environment variables of the process with this index on the node, among those that take part."""
        found = {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(group.total),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(group.first + index),
            "KERAS_DIST_LOCAL_PROCESS": str(group.slots[index]),
            "KERAS_DISTRIBUTION_INITIALIZATION_TIMEOUT_S": str(self.join_timeout_s),
        }
        if self.hang_timeout_s:
            found["KERAS_DISTRIBUTION_HANG_TIMEOUT_S"] = str(self.hang_timeout_s)
        if self.place.coordinator is None:
            found["JAX_COORDINATOR_BIND_ADDRESS"] = address
        if self.devices is not None:
            found |= {"JAX_NUM_CPU_DEVICES": str(self.devices), "JAX_PLATFORMS": "cpu"}
        return found


class Supervisor:
    """Supervisor of the processes of a job on one node; it writes failures to the JSON file `report`."""

    def __init__(
        self, job: Job, *, max_restarts: int = 3, grace_s: int = 30, report: pathlib.Path | None = None
    ) -> None:
        self._job, self._grace_s = job, grace_s
        described = {"nodes": job.place.nodes, "processes": job.processes}
        self._restarts = Restarts(max_restarts, report, described)
        self._group = Group(())
        self._processes: list[LocalProcess] = []
        self._asked: int | None = None  # the first signal to this process
        self._saves_before = 0  # before that signal
        self._presses = [0, 0]  # Ctrl-C to this process and to its parent, which may both get one

    def on_signal(self, number: int, is_forwarded: bool) -> None:
        """Send the first signal to the processes, which save; of later signals only a third Ctrl-C ends them."""
        self._presses[is_forwarded] += number == signal.SIGINT
        is_first, is_enough = self._asked is None, number == signal.SIGINT and self._presses[is_forwarded] >= _ENOUGH
        if is_first:
            self._asked = number
            self._saves_before = self._processes[0].notes.saves if self._processes else 0
        if is_first or is_enough:
            for process in self._processes:
                process.send(number if is_first else signal.SIGKILL)

    def run(self, folder: pathlib.Path) -> int:
        """Run the job, with a folder for notes, and return its exit code."""
        self._write_report()
        try:
            members = self._membership()
        except ClusterError as error:
            self._say(str(error))
            return _USAGE
        code = 1  # of an error of the launcher
        try:
            code = self._run(members, folder)
        except AbsentNodesError as error:
            code = self._end_without(str(error))
        except JobEndedError as ended:
            (code,) = ended.args
            self._say(f"the job has ended with exit code {code}, while this node waited for a place in it")
        finally:
            members.close(code)
        return code

    def _run(self, members: Membership, folder: pathlib.Path) -> int:
        while True:
            group = members.gather(grows=self._restarts.grows)
            if group is None:
                return self._end_between_starts()
            self._start(group, members, folder)
            failure = self._watch(members)
            if self._asked:
                return self._end_as_asked()
            self._end(failure)
            if failure is None:
                self._look_whether_joined()
                return 0
            code = self._prepare_restart(failure, members)
            if code is not None:
                return code

    def _membership(self) -> Membership:
        """Return the processes and nodes that take part."""
        job, place = self._job, self._job.place
        least = job.min_processes or job.processes
        if job.min_nodes is None or place.nodes == 1:
            return Membership(place, job.processes, least)
        kind = OtherNode if place.rank else FirstNode
        return kind(
            place, job.processes, least, job.min_nodes, job.join_timeout_s, lambda: bool(self._asked), self._say
        )

    def _start(self, group: Group, members: Membership, folder: pathlib.Path) -> None:
        """Start the processes of this node that take part; a single node uses a free port."""
        before, self._group = self._group.total or members.largest, group
        if group.total != before:
            without = f", without node {', '.join(map(str, group.absent))}" if group.absent else ""
            self._say(f"starts with {group.total} of {members.largest} processes{without}")
        self._restarts.note_start(group.total)
        command = [sys.executable, "-u", *self._job.command]
        address = self._job.place.coordinator or _free_address()
        self._processes = []
        for number in range(len(group.slots)):
            if self._asked:
                break
            environment = self._job.environment(number, group, address)
            self._processes.append(LocalProcess(group.first + number, command, environment, folder))
            if self._asked:  # while it was started
                self._processes[-1].send(self._asked)

    def _watch(self, members: Membership) -> Failure | None:
        """Wait until all processes have succeeded, or one has failed, or all have ended to restart with more."""
        has_asked = False
        while not self._asked:
            ended = [process for process in self._processes if process.poll()]
            if ended:
                if not (members.is_elastic and self._have_saved(ended)):
                    return self._failure_of(ended)
                return Failure(None, "saved and ended", self._processes[0].notes.step_at or time.time())
            if self._restarts.awaits_step:
                self._note_next_step(members)
            elif not has_asked and members.wants_growth():
                has_asked = True
                self._processes[0].ask_to_end()
                self._say("asks the job to end at its next save, and restarts it with more processes then")
            if all(process.code == 0 for process in self._processes):
                return None
            time.sleep(_POLL_S)
        return None

    def _have_saved(self, ended: Sequence[LocalProcess]) -> bool:
        """Wait for the other processes if one has ended after a save; return whether all have."""
        if ended[0].code != os.EX_TEMPFAIL or ended[0].notes.blamed is not None:
            return False
        self._await_end(self._grace_s, self._processes)
        return all(process.code == os.EX_TEMPFAIL for process in self._processes)

    def _look_whether_joined(self) -> None:
        """Warn if several processes succeeded without joining a job."""
        if self._group.total > 1 and not any(process.notes.joined for process in self._processes):
            self._say("no process has called keras_dist.initialize(): each ran alone, not as one job")

    def _note_next_step(self, members: Membership) -> None:
        """Note the first step after the last failures."""
        since = self._processes[0].notes.first_step_at
        if since is None:
            return
        members.note_step()
        first = self._restarts.note_step(since)
        after = "failure" if first.process is not None else "last one"
        self._say(f"first step {first.to_next_step_s:.1f} s after the {after}; steps lost: {first.steps_lost}")
        self._write_report()

    def _failure_of(self, ended: Sequence[LocalProcess]) -> Failure:
        """Return the first failure; processes that exited because of another one have recorded its index."""
        now = time.time()
        if any(process.notes.absent is not None for process in ended):
            self._await_end(_MOMENT_S, self._processes)  # the first process knows more than others
            absent = sorted({index for process in self._processes for index in process.notes.absent or ()})
            how = f"did not join within {self._job.join_timeout_s} s"
            return Failure(absent[0] if absent else ended[0].index, how, now, absent)
        failed = [process for process in ended if process.notes.blamed in (None, process.index)]
        failed.sort(key=lambda process: process.code == -signal.SIGABRT)  # JAX aborts when another process has failed
        notes = ended[0].notes
        if not failed:
            failed = [process for process in self._processes if process.index == notes.blamed and process.notes.failure]
        if failed:
            return Failure(failed[0].index, failed[0].end_described(), now)
        at = min(now, self._processes[0].notes.step_at or now)
        return Failure(notes.blamed or 0, f"{notes.reason}, according to process {ended[0].index}", at)

    def _prepare_restart(self, failure: Failure, members: Membership) -> int | None:
        """Choose the processes of the next start, and wait; return an exit code if there is none."""
        restarts = self._restarts
        has_trained = any(process.notes.first_step_at for process in self._processes)
        is_back = has_trained or not restarts.awaits_step
        restarts.add(failure, self._processes[0].notes)
        absent = "" if members.is_elastic else self._absent_nodes(failure)
        reason = "" if has_trained else self._unfit_mesh(members)
        lost = [] if is_back or failure.process is None else self._lost(failure)
        if reason:  # a smaller job may fit
            lost = self._group.slots[-1:] if self._job.place.nodes == 1 else []
        if not has_trained and self._have_said(_UNFIT_STATE):
            lost, reason = [], "as the state does not fit this number of processes"
        has_shrunk = bool(lost) and members.lose(lost)
        if reason and has_shrunk:  # which is an attempt, and no failure
            restarts.in_row, failure.restarted, reason = restarts.in_row - 1, True, ""
        failure.restarted &= not (absent or reason)
        self._write_report()
        if absent:
            return self._end_without(f"{absent} {failure.how}")
        self._say(f"{failure.who} {failure.how}; saved: {restarts.known_save}")
        if failure.process is None and failure.restarted:
            return None
        if not failure.restarted:
            return self._give_up(failure, reason or f"after {restarts.in_row - 1} restarts in a row without progress")
        pause = 0.0 if has_shrunk else restarts.pause_s
        self._say(f"restart {restarts.in_row} of {restarts.largest}" + f" in {pause:g} s" * bool(pause))
        self._sleep(pause)
        return self._end_between_starts() if self._asked else None

    def _lost(self, failure: Failure) -> list[int]:
        """Return the processes of this node that have failed by themselves, by their indices on the node."""
        pairs = zip(self._group.slots, self._processes, strict=False)
        if failure.absent is not None:
            return [slot for slot, process in pairs if process.index in failure.absent]
        return [slot for slot, process in pairs if process.index == failure.process or process.has_failed]

    def _absent_nodes(self, failure: Failure) -> str:
        """Describe the nodes whose processes did not join; empty for processes of this node."""
        place, absent = self._job.place, failure.absent
        if absent is None or place.nodes == 1:
            return ""
        if not absent:
            return "a process of another node"
        nodes = sorted({index // self._job.processes for index in absent} - {place.rank})
        return f"node {', '.join(map(str, nodes))} (process {', '.join(map(str, absent))})" if nodes else ""

    def _have_said(self, text: str) -> bool:
        return any(text in line for process in self._processes for line in process.log)

    def _unfit_mesh(self, members: Membership) -> str:
        """Return why the mesh of the script does not fit a smaller job; empty if it does."""
        total = self._group.total
        if total == members.largest or not self._have_said(_UNFIT_MESH):
            return ""
        fix = "write -1 for an axis of the mesh that may shrink, or leave out --min-processes and --min-nodes"
        return f"as the mesh does not fit {total} of {members.largest} processes ({fix})"

    def _end(self, failure: Failure | None) -> None:
        """End the remaining processes, their children, and the coordination service."""
        if failure is not None:
            self._await_end(_CLOSE_S, [process for process in self._processes if process.notes.failure])
            self._await_end(_MOMENT_S, self._processes)
        for process in self._processes:
            process.kill()
        place = self._job.place
        if failure is not None and failure.process is not None and place.nodes > 1:
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
        end = time.monotonic() + _GONE_S
        while time.monotonic() < end and not self._asked and answers(coordinator):
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
        notes = self._processes[0].notes if codes else ProcessNotes()
        saved = notes.saved
        if os.EX_TEMPFAIL in codes or (saved is not None and notes.saves > self._saves_before):
            return os.EX_TEMPFAIL
        fix = "raise --grace, or save more often: BackupAndRestore(save_freq=...)"
        self._say(f"nothing was saved after the signal; saved before: {saved or self._restarts.known_save}; {fix}")
        return 128 + (self._asked or 0)

    def _end_between_starts(self) -> int:
        self._say(f"ends between two starts, after a signal; saved: {self._restarts.known_save}")
        return os.EX_TEMPFAIL if self._asked == signal.SIGTERM else 128 + (self._asked or 0)

    def _end_without(self, what: str) -> int:
        """Ask for another start of the launcher, with all nodes."""
        self._say(f"{what}; saved: {self._restarts.known_save}; start the same command again, on every node")
        return os.EX_TEMPFAIL

    def _give_up(self, failure: Failure, why: str) -> int:
        """Print the reason and the log of the process that failed, and return an exit code other than 75."""
        failed = [process for process in self._processes if process.index == failure.process]
        for process in failed:
            self._say(f"the last lines of process {process.index}:\n" + "\n".join(f"  {line}" for line in process.log))
        self._say(f"given up {why}: {failure.who} {failure.how}")
        code = failed[0].code or 1 if failed else 1
        return code if 0 < code < 128 and code != os.EX_TEMPFAIL else 1

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._asked and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _say(self, text: str) -> None:
        place = self._job.place
        node = f"node {place.rank} ({socket.gethostname()}): " if place.nodes > 1 else ""
        print_line(printable(f"launch: {node}{text}"), sys.stderr)

    def _write_report(self) -> None:
        reason = self._restarts.write()
        if reason is not None:
            self._say(f"the report was not written: {reason}")


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
