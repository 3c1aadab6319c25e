"""Heartbeats of the processes of a job: when one exits, hangs or fails, the others exit within seconds.

Gloo reports a closed connection without its process, says nothing of a stopped one, and JAX's own time-out aborts. So
each process writes a heartbeat a second to JAX's key-value store and reads the others' in a thread. The coordination
service reports processes that have exited. One silent for `heartbeat_timeout_s`, or for 3 s after it exited or a
collective failed, counts as failed; the others exit with one line. Anyone who reaches the coordinator's port may write
there: a forged heartbeat can end a job, but run no code.

A heartbeat carries the `CollectiveLog` of its process. If the logs differ, the job ends with one line.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import faulthandler
import json
import math
import os
import sys
import threading
import time
from collections.abc import Generator, Set
from types import TracebackType
from typing import Any, NoReturn

from keras_dist._support import ambient
from keras_dist._support.process_notes import ProcessNotes
from keras_dist._unstable import gloo, jax_runtime
from keras_dist._unstable.coordination_service import Connection
from keras_dist.errors import ProcessAbsentError, printable, shorten
from keras_dist.jobs.collective_log import CollectiveLog, difference

EXIT_RESTART = 75
"""`EX_TEMPFAIL`: exit code of a process whose job has saved since its start, and resumes when it is started again.

A job that has not would fail again, and a script that repeats it for this code would never end.
"""

LONGEST_WAIT_S = 3600.0  # limit of a wait outside of steps, where `hang_timeout_s` is None

_BEAT_S = 1.0
_GRACE_S = 4.0  # in which all processes may raise the same error, each with its own traceback
_LOST_S = 3.0  # without a heartbeat, for a process whose connections are closed
_CONNECT_MS = 10_000
_REPORT_EVERY_S = 15.0
_LOST_CONNECTIONS = ("Gloo", "NCCL", "UNAVAILABLE: ")  # in errors: a connection to another process was closed
_SIGNALLED = 128  # a larger exit code is this number plus the number of a signal
_PLACE, _ENTRANCE = "keras_dist/alive/", "keras_dist/entrance"
_LIMIT_CHARACTERS = 10_000
_WHY_CHARACTERS = 500
_SAME = (
    "make the same calls in all processes: let callbacks that stop training or set variables run in each of them, and "
    "give each as many batches, of the same lengths"
)

_IN_VAIN = "remove the cause, or save more often (save_freq of BackupAndRestore), before a restart"

_STEP, _CONNECTION = "step", "connection"
_STRANGER = (
    "another program may have connected to a port of theirs: keep these on a private network; start the job again"
)

_STATES = RUNNING, FAILED, LEFT = "running", "failed", "left"


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """A message of one process: state, reason of a failure, number of steps, last collective operations."""

    number: int = 0
    state: str = RUNNING
    why: str = ""
    steps: int = 0
    acts: CollectiveLog = dataclasses.field(default_factory=CollectiveLog)

    def encode(self) -> str:
        """Return the heartbeat as JSON."""
        acts = self.acts.since, self.acts.count, "\n".join(self.acts.last)
        return json.dumps([self.number, self.state, self.why[:_WHY_CHARACTERS], self.steps, *acts])

    @classmethod
    def decode(cls, text: bytes) -> Heartbeat:
        """Return the heartbeat; a failed one for a text that no process of the job wrote."""
        try:
            said: object = json.loads(text) if len(text) <= _LIMIT_CHARACTERS else None
        except (ValueError, RecursionError):
            said = None
        match said:
            case [int(number), str(state), str(why), int(steps), str(since), int(count), str(last)] if state in _STATES:
                return cls(number, state, why, steps, CollectiveLog(since, count, tuple(last.splitlines())))
            case _:
                return cls(0, FAILED, f"its heartbeat is {shorten(text[:100])}, which no process of a job writes")


class Monitor:
    """The progress of this process. In a program of one process, as here, nobody else learns of it."""

    def __init__(self, hang_timeout_s: float | None = None) -> None:
        self.hang_timeout_s = hang_timeout_s  # of a step, and of waiting for other processes
        self.notes = ProcessNotes()  # for the launcher, when this process has exited
        self._has_saved = False  # since the start of the program
        self._notes_file: int | None = None
        self._notes_lock = threading.Lock()
        self._last_step: float | None = None  # None while nothing is waited for
        self._limit_s, self._awaited = hang_timeout_s, _STEP
        self._steps = 0
        self._acts = CollectiveLog()
        self._call: str | None = None
        self._begun = collections.Counter[str]()  # steps of the call by their kind

    @property
    def is_watching(self) -> bool:
        """Whether other processes watch this one, until JAX's distributed runtime is shut down."""
        return False

    def state_of(self, process: int) -> str | None:
        """Return the last known state of another process; None if there is none."""

    def fail(self, error: BaseException) -> None:
        """Report an error to the other processes. If another process has failed, exit with its reason."""

    def clear_failure(self) -> None:
        """Record that the program continues after an error that all processes have raised."""

    def connecting(self, devices: frozenset[Any]) -> contextlib.AbstractContextManager[bool]:
        """Limit the first collective over these devices; the result is whether there was none before."""
        return contextlib.nullcontext(False)

    @contextlib.contextmanager
    def steps(self, call: str, *, is_shared: bool) -> Generator[None]:
        """Limit each step, and report errors to the other processes; all of them take part if the call `is_shared`."""
        self.clear_failure()
        outer_call = self._call, self._begun
        self._call, self._begun = call if is_shared else None, collections.Counter[str]()
        with self._limited(self.hang_timeout_s, _STEP):
            try:
                yield
                if is_shared:
                    self.note_act(f"the end of {call}")
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._call, self._begun = outer_call

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Limit a wait, outside of steps, for a computation in which all processes take part."""
        if threading.current_thread() is not threading.main_thread():  # as those that save
            yield
            return
        with self._limited(self.hang_timeout_s or LONGEST_WAIT_S, _STEP):
            yield

    @contextlib.contextmanager
    def _limited(self, limit_s: float | None, awaited: str) -> Generator[None]:
        outer_step, self._last_step = self._last_step, time.monotonic()  # first: the thread may look in between
        outer, self._limit_s, self._awaited = (self._limit_s, self._awaited), limit_s, awaited
        try:
            yield
        finally:
            self._last_step = None if outer_step is None else time.monotonic()
            self._limit_s, self._awaited = outer

    def note_step(self) -> None:
        """Note that this process makes progress."""
        self._last_step = time.monotonic()
        self._steps += 1
        if self.notes.first_step_at is None:
            self.note(first_step_at=time.time())

    def note_act(self, act: str) -> None:
        """Record a collective operation, in which a single process would wait forever."""
        if threading.current_thread() is threading.main_thread():  # in other threads acts have no fixed order
            self._acts = self._acts.then(act)

    def note_shared_steps(self, kind: str, steps: int) -> None:
        """Note that steps begin in which all processes take part."""
        first = self._begun[kind] + 1
        self._begun[kind] = last = self._begun[kind] + steps
        numbers = f"step {first}" if first == last else f"steps {first} to {last}"
        self.note_act(f"{kind} {numbers}" + (f" of {self._call}" if self._call else ""))

    @contextlib.contextmanager
    def meeting(self, about: str, place: str) -> Generator[None]:
        """Note that this process waits for all others at the same place."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = self._acts
        self.note_act(about)
        try:
            yield
        except BaseException:
            self._acts = before
            raise
        self._acts = CollectiveLog(place)
        if self._last_step is not None:  # an exchange is progress
            self._last_step = time.monotonic()
        if self._call is None:
            self._begun.clear()

    def note_begun(self, training_steps: int) -> None:
        """Note that this number of further training steps has begun."""
        self.notes.steps, self.notes.step_at = self.notes.steps + training_steps, time.time()
        if self._notes_file is not None:
            self.note()

    def note_save(self, what: str | None, steps: int | None = None) -> None:
        """Note the checkpoint from which a restarted job resumes, or None; and the training steps in a new one."""
        self._has_saved |= steps is not None
        saves = self.notes.saves + (steps is not None)
        self.note(saved=what, saved_steps=self.notes.steps if steps is None else steps, saves=saves)

    def note(self, **facts: Any) -> None:
        """Update `notes`, and write them for the launcher, if there is one."""
        with self._notes_lock:
            vars(self.notes).update(facts)
            if self._notes_file is not None:
                self.notes.write(self._notes_file)


ambient.process.monitor = Monitor()


def current() -> Monitor:
    """Return the monitor of this process."""
    return ambient.process.monitor


def watch_job(entrance: str | None, **timeouts: Any) -> None:
    """Start the heartbeats of this process, which has joined a job; the first process has the service's `entrance`.

    An empty entrance stands for a service of others, which does not report processes that have exited.
    """
    ambient.process.monitor = job_monitor = JobMonitor(**timeouts)
    job_monitor.start(entrance)


class JobMonitor(Monitor):
    """The heartbeats of one process of a job; for the time-outs see `initialize`."""

    def __init__(
        self,
        heartbeat_timeout_s: float,
        shutdown_timeout_s: float,
        hang_timeout_s: float | None,
        initialization_timeout_s: float = LONGEST_WAIT_S,
    ) -> None:
        super().__init__(hang_timeout_s)
        self._client = jax_runtime.job_client()
        self.process, self.processes = jax_runtime.place_in_job()
        self._timeout_s, self._shutdown_timeout_s = heartbeat_timeout_s, shutdown_timeout_s
        self._mine = Heartbeat()
        self._lock = threading.Lock()  # for writing heartbeats
        self._stopped = threading.Event()
        self._seen: dict[int, tuple[Heartbeat, float]] = {}
        self._failed_since: dict[int, float] = {}  # for others; infinite where this process failed with them
        self._join_timeout_s = initialization_timeout_s
        self._connected: set[frozenset[Any]] = set()  # devices over which a collective has run
        self._clock = threading.Lock()
        self._answered = self._watched = time.monotonic()  # last answer of the coordination service, last look
        self._connection: Connection | None = None
        self._exited: Set[int] = frozenset()
        self._differs: dict[int, tuple[tuple[str, str, str], float]] = {}  # from the acts of others, and since when
        self._lost = False  # whether another process is known to have exited
        self._notes_file = ProcessNotes.open_file()

    @property
    def is_watching(self) -> bool:
        """Whether this process has joined a job and watches its other processes."""
        return self._client is jax_runtime.job_client()

    def start(self, entrance: str | None) -> None:
        """Write and read heartbeats in a thread, until `leave`."""
        self.note(joined=True)
        self._beat()
        if entrance is not None:
            self._client.key_value_set(_ENTRANCE, entrance)
        self._thread = threading.Thread(target=self._run, name="keras_dist heartbeat", daemon=True)
        self._thread.start()
        gloo.before_abort(self._explain)
        atexit.register(self.leave)
        before = sys.excepthook

        def fail(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self.fail(error)
            before(kind, error, traceback)
            if isinstance(error, Exception):  # else Python exits by the signal
                atexit.register(self._leave_after_error)  # last, so that it is called first

        sys.excepthook = fail

    def fail(self, error: BaseException) -> None:  # noqa: D102
        code = error.code if isinstance(error, SystemExit) else None
        if code == EXIT_RESTART or (isinstance(code, int) and code > _SIGNALLED):
            return  # all processes exit at the same step
        if isinstance(error, ProcessAbsentError) or any(name in str(error) for name in _LOST_CONNECTIONS):
            self._explain()
        if self._mine.state == RUNNING:
            failure = f"{type(error).__name__}: {shorten(str(error))}"
            self.note(failure=failure)
            self._beat(FAILED, failure)

    @contextlib.contextmanager
    def connecting(self, devices: frozenset[Any]) -> Generator[bool]:  # noqa: D102
        if devices in self._connected:
            yield False
            return
        with self._limited(self._join_timeout_s, _CONNECTION):
            yield True
        self._connected.add(devices)

    def clear_failure(self) -> None:  # noqa: D102
        if self._mine.state == FAILED:
            self.note(failure=None)
            self._beat(RUNNING)

    def state_of(self, process: int) -> str | None:  # noqa: D102
        seen = self._seen.get(process)
        return None if seen is None else seen[0].state

    def _explain(self) -> None:
        """Wait until it is known which process has died, and exit; return if none has."""
        self._timeout_s, self._lost = min(self._timeout_s, _LOST_S), True
        self._stopped.wait(self._timeout_s + 2 * _BEAT_S)

    def leave(self) -> None:
        """Leave the job at the end of the program; without an error, the first process waits for the others."""
        if self._stopped.is_set() or not self.is_watching:
            return
        failed = self._mine.state == FAILED
        if not failed:
            self.note_act("the end of the program")
            self._beat(LEFT)
        end = time.monotonic() + self._shutdown_timeout_s
        told_at = time.monotonic()
        while self.process == 0 and not failed and (running := self._running()) and time.monotonic() < end:
            time.sleep(_BEAT_S / 10)
            if time.monotonic() - told_at >= _REPORT_EVERY_S:
                told_at = time.monotonic()
                others = ", ".join(map(str, running))
                sys.stderr.write(f"keras_dist: process 0 has finished, and waits for process {others}\n")
        self._stopped.set()
        self._thread.join()
        if failed:
            self._kept = jax_runtime.abandon_job()
        else:
            jax_runtime.leave_job()

    def _leave_after_error(self) -> None:
        """Exit after an uncaught error, without C++ destructors: threads that wait for other processes abort there."""
        atexit.unregister(self._leave_after_error)
        self.leave()
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _running(self) -> list[int]:
        return [process for process, beat in self._read() if beat.state == RUNNING]

    def _beat(self, state: str | None = None, why: str = "") -> None:
        """Write a heartbeat, with a new state if one is given."""
        if not self.is_watching:  # others may shut JAX's runtime down
            return
        with self._lock:
            said = (self._mine.state, self._mine.why) if state is None else (state, why)
            self._mine = Heartbeat(self._mine.number + 1, *said, self._steps, self._acts)
            self._client.key_value_set(f"{_PLACE}{self.process}", self._mine.encode(), allow_overwrite=True)

    def _read(self) -> list[tuple[int, Heartbeat]]:
        found = {name.rpartition("/")[2]: text for name, text in self._client.key_value_dir_get_bytes(_PLACE)}
        others = (process for process in range(self.processes) if process != self.process)
        return [(process, Heartbeat.decode(found[str(process)])) for process in others if str(process) in found]

    def _connect(self) -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # behind a firewall heartbeats must do
            entrance = self._client.blocking_key_value_get(_ENTRANCE, _CONNECT_MS)
            if not entrance:
                return
            host = (jax_runtime.coordinator_address() or "").rpartition(":")[0].strip("[]")
            self._connection = Connection(host, entrance, self.process)
            self._exited = self._connection.exited

    def _run(self) -> None:
        self._connect()
        watched, last = 0.0, time.monotonic()  # time in which this process could see heartbeats
        self._answered = last
        threading.Thread(target=self._watch, name="keras_dist service", daemon=True).start()
        while not self._stopped.wait(_BEAT_S) and self.is_watching:
            try:
                if self._connection is not None:
                    self._connection.look()  # before heartbeats, which say whether a process has left the job
                self._beat()
                beats = self._read()
            except RuntimeError:
                continue
            self._answered = now = self._now()
            watched, last = watched + min(now - last, 2 * _BEAT_S), now
            self._look_at_acts(beats, now)
            self._look(beats, watched)
            self._look_at_steps(now)

    def _watch(self) -> None:
        """Look at the service while another thread may wait for its answer."""
        while not self._stopped.wait(_BEAT_S) and self.is_watching:
            is_closed = self._connection is not None and self._connection.is_closed
            if self._now() - self._answered >= (min(self._timeout_s, _LOST_S) if is_closed else self._timeout_s):
                has = "does not answer, or its coordination service does not"
                self._end(0, has if self.process else "has lost its coordination service")

    def _now(self) -> float:
        """Return the time; a job that was suspended as a whole and continues has waited for nothing meanwhile."""
        with self._clock:
            now = time.monotonic()
            suspended = max(now - self._watched - 2 * _BEAT_S, 0)
            self._watched, self._answered = now, self._answered + suspended
            if self._last_step is not None:
                self._last_step += suspended
            return now

    def _look(self, beats: list[tuple[int, Heartbeat]], now: float) -> None:
        for process, beat in beats:
            last, since = self._seen.get(process, (None, now))
            if beat != last:
                since = now
                self._seen[process] = beat, since
            if beat.state != FAILED:
                self._failed_since.pop(process, None)
            elif self._mine.state == FAILED:
                self._failed_since[process] = math.inf
            elif now - self._failed_since.setdefault(process, now) >= (0 if self._lost else _GRACE_S):
                self._end(process, f"has failed: {beat.why}")
            beats_on = beat.state == RUNNING or self._failed_since.get(process) == math.inf
            if self._mine.state == RUNNING and beats_on and now - since >= _LOST_S and process in self._exited:
                self._end(process, "has exited: its connection is closed")
            if self._mine.state == RUNNING and beats_on and now - since >= self._timeout_s:
                slow = "" if self._lost else "; if its machine is only slow, raise heartbeat_timeout_s"
                self._end(process, f"has exited or hangs: silent for {now - since:.0f} s{slow}")
            waits = self._lost or not jax_runtime.backend_started()  # which all must start together
            if beat.state == LEFT and now - since >= _GRACE_S and waits:
                self._end(process, "has ended its program before the others")

    def _look_at_acts(self, beats: list[tuple[int, Heartbeat]], now: float) -> None:
        for process, beat in beats:
            found = None if FAILED in (self._mine.state, beat.state) else difference(self._mine.acts, beat.acts)
            if found is None:
                self._differs.pop(process, None)
                continue
            last, since = self._differs.get(process, (None, now))
            self._differs[process] = found, since if last == found else now
            if now - self._differs[process][1] < (0 if self._lost else _GRACE_S):  # one may be about to raise
                continue
            before, mine, others = found
            (first, act), (second, other_act) = sorted([(self.process, mine), (process, others)])
            differ = f"process {first} comes to {act}, and process {second} to {other_act}"
            differ = f"after {before} {differ}" if before else differ
            self._exit(self.process, differ, f"{differ}; {_SAME}", 1)  # started again, it would come there again

    def _look_at_steps(self, now: float) -> None:
        since, limit_s = self._last_step, self._limit_s
        if limit_s is not None and since is not None and now - since > limit_s:
            if self._awaited == _CONNECTION:
                faulthandler.dump_traceback()
                reason = f"the processes have not connected for their first collective within {limit_s:g} s"
                self._exit(self.process, reason, f"{reason}; {_STRANGER}", 1)
            steps = {self.process: self._steps} | {process: beat.steps for process, (beat, _) in self._seen.items()}
            last = min(steps, key=lambda process: (steps[process], process != self.process))  # others wait for it
            hangs = f"no step for {now - since:.0f} s"
            self._beat(FAILED, hangs)
            faulthandler.dump_traceback()
            self._end(last, f"hangs: {hangs}")

    def _end(self, blamed: int, reason: str) -> NoReturn:
        saved = self.notes.saved
        who = "it" if blamed == self.process else f"process {blamed} of {self.processes}"
        again = "start the job again" if self._has_saved else f"nothing since this start; {_IN_VAIN}"
        advice = "nothing is saved" if saved is None else f"saved: {saved}; {again}"
        self._exit(blamed, reason, f"{who} {reason}; {advice}", EXIT_RESTART if saved and self._has_saved else 1)

    def _exit(self, blamed: int, reason: str, told: str, code: int) -> NoReturn:
        self.note(blamed=blamed, reason=reason)
        sys.stderr.write(printable(f"keras_dist: process {self.process} ends, because {told}\n"))
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(code)
