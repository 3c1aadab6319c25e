"""The execution loop shared by `fit`, `evaluate` and `predict`, and the signals that end it between two steps.

fit, evaluate and predict are one loop with three kinds of steps. At most two executions are in flight: the batches of
the second are transferred while the first runs, and more would deadlock fake devices and gain nothing.

Ctrl-C, SIGTERM of a scheduler, and SIGHUP of a closed terminal end training between two steps, never within a step: a
`KeyboardInterrupt` between a donated step and the storing of its result loses the state. So the signal handler only
notes the signal, which is raised between steps; the second one is raised at once, except from dispatch to storing.
Steps are compiled before they are dispatched, so the second ends a compilation.

Where a scheduler signals the launcher and its processes, these get a copy, which must not end the save. So they ignore
further signals, and the launcher kills them at the third Ctrl-C. In other jobs one copy is ignored after the agreement
to end.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import jax

from keras_dist._support import ambient
from keras_dist._support.process_notes import NOTES_VARIABLE
from keras_dist._support.types import PyTree
from keras_dist.jobs import heartbeat, job
from keras_dist.training.executions import Execution
from keras_dist.training.throughput import StepTimer

Mode = Literal["train", "test", "predict"]

MAX_IN_FLIGHT = 2
"""Executions in flight: more would deadlock fake CPU devices and would not be faster; see `backend_environment`."""


Hooks = Any  # a `CallbackList`, which is on a higher floor


def run_steps(
    mode: Mode,
    executions: Iterable[Execution],
    dispatch: Callable[[Execution], tuple[PyTree, int]],
    hooks: Hooks,
    check_interrupt: Callable[[], None],
    timer: StepTimer,
    *,
    as_logs: Callable[[list[tuple[int, PyTree]]], Mapping[str, Any]],
    collect: Callable[[int, PyTree], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    in_flight: int = MAX_IN_FLIGHT,
    batch: int = 0,
    group: int | None = None,
) -> PyTree:
    """Dispatch every execution, at most `in_flight` of them at a time; return the arrays of the last dispatch.

    `dispatch` starts an execution; it returns arrays that are ready when it is done, and the number of programs that it
    compiled. Hooks are called once for `group` steps, with logs that `as_logs` makes from the rows and arrays of each
    execution, and with the last batch of a full group, which Keras reports even where the data ends earlier.
    `collect` is called with the rows and arrays of each finished execution, in order.
    """
    waiting: collections.deque[tuple[int, int, PyTree, PyTree, float]] = collections.deque()

    def finish_oldest() -> None:
        steps, rows, result, output, started = waiting.popleft()
        output.block_until_ready()
        heartbeat.current().note_step()
        timer.finished(started, steps)
        if collect is not None:
            collect(rows, result)

    result, group, end = None, group or 1, batch
    results: list[tuple[int, PyTree]] = []  # of the group

    def end_group() -> None:
        hooks.batch_end(mode, batch - 1, end - 1, functools.partial(as_logs, results))

    timer.begin()
    for execution in executions:
        if len(waiting) >= min(in_flight, MAX_IN_FLIGHT):
            finish_oldest()
        if batch >= end:
            hooks.batch_begin(mode, batch)
            results, end = [], batch + group
        began = timer.look()
        result, compiled = dispatch(execution)
        output = jax.tree.leaves(result)[0]  # all outputs of a program are ready at once
        steps, rows = execution.steps, execution.rows
        results.append((rows, result))
        if mode == "train":
            heartbeat.current().note_begun(steps)
        waiting.append((steps, rows, result, output, timer.dispatched(began, output, steps * rows, compiled)))
        del execution  # the next batch can have the memory of its arrays
        batch += steps
        if batch >= end:
            end = batch
            end_group()
        timer.look()
        check_interrupt()
        if should_stop():
            break
    if batch < end:
        end_group()
    while waiting:
        finish_oldest()
    timer.end()
    return result


Leave = Callable[[int], None]  # called between two steps with the number of the signal; it may raise


class _Notes:
    """The handler of SIGINT, and of others with `leave`, while steps run; `shields` delay its exceptions."""

    # Python swallows exceptions of a handler in `__del__` and in callbacks of the garbage collector; `check` repeats

    def __init__(self) -> None:
        self._presses = 0
        self._last = math.inf if NOTES_VARIABLE in os.environ else 1  # which does not end training at once
        self._signal = signal.SIGINT
        self._handled_before = sys.exception()
        self._has_asked = False
        self.shields = 1
        self.leave: Leave | None = None
        self.is_shared = False

    def __call__(self, signum: int, frame: object) -> None:
        """Note a signal; the second signal ends the training at once."""
        if self._presses and signum == signal.SIGHUP:  # systemd may send it after SIGTERM
            return
        self._presses += 1
        self._signal = signal.Signals(signum)
        if self._presses > self._last and not self.shields:
            if signum == signal.SIGTERM:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
            self._raise()

    def __enter__(self) -> None:
        """Note signals without raising."""
        self.shields += 1

    def __exit__(self, *exception: object) -> None:
        """Raise again."""
        self.shields -= 1

    def check(self) -> None:
        """End the training between two steps after a signal; all processes of a job end after the same step."""
        if self.leave is not None and not self._is_leaving():
            if job.process_count() > 1 and not (self.is_shared and self._is_time_for_all()):
                return
            if self._presses:
                leave, self.leave = self.leave, None
                leave(self._signal)
        self._raise()

    def _is_time_for_all(self) -> bool:
        """Whether the processes of the job have agreed to end here; Ctrl-C in one process asks the others."""
        if self._presses and not self._has_asked:
            self._has_asked = True
            os.kill(os.getpid(), signal.SIGTERM)  # JAX's handler informs all processes
        if not job.reached_preemption_point():
            return False
        if not self._presses:
            self._presses, self._last, self._signal = 1, self._last + 1, signal.SIGTERM
        signal.signal(signal.SIGTERM, self)  # JAX handles the first
        return True

    def restore(self, signum: int, handler: Any) -> None:
        """Restore a handler; a process that leaves because of a signal ignores copies of it until it has exited."""
        signal.signal(signum, signal.SIG_IGN if self._presses and math.isinf(self._last) else handler)

    def _raise(self) -> None:
        """Raise after a signal, unless its exception is being handled already."""
        if self._presses and not self._is_leaving():
            raise KeyboardInterrupt if self._signal == signal.SIGINT else SystemExit(128 + self._signal)

    def _is_leaving(self) -> bool:
        leaving = sys.exception()
        return leaving is not self._handled_before and isinstance(leaving, KeyboardInterrupt | SystemExit)


@contextlib.contextmanager
def interrupt_between_steps(leave: Leave | None = None, *, is_shared: bool = False) -> Iterator[Callable[[], None]]:
    """Context manager that records the first Ctrl-C; yields the function that raises for it between steps.

    A second Ctrl-C is raised at once, except in a `shield`. Nested contexts share the outer function. Nothing is done
    outside of the main thread, where Python delivers no signals, and where the user has a handler. With `leave`, which
    is called before the function raises, SIGTERM is treated like Ctrl-C. If all processes of a job run the steps
    (`is_shared`), a signal to one ends all after the same step.
    """
    if not _is_main_thread():
        yield lambda: None
        return
    running: _Notes | None = ambient.process.interrupts
    if job.process_count() > 1:
        if not (_has_default(signal.SIGTERM) and job.has_preemption_points()):
            leave, is_shared = None, False  # one process cannot leave without the others
        elif is_shared and leave is None and (running is None or running.leave is None):
            leave = lambda signum: None  # noqa: E731  # all leave by the signal alone
    if running is not None:
        with _leaving(running, leave, is_shared):
            yield running.check
            running.check()
        return
    outer, terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    if outer is not signal.default_int_handler and leave is None:
        yield lambda: None
        return
    notes = _Notes()
    is_ours = outer is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, notes)
    try:
        ambient.process.interrupts = notes
        with _leaving(notes, leave, is_shared):
            notes.shields -= 1
            yield notes.check
            notes.check()  # for a signal after the last step
    finally:
        notes.shields += 1  # `signal.signal` first calls pending handlers
        ambient.process.interrupts = None
        if is_ours:
            notes.restore(signal.SIGINT, outer)
        if signal.getsignal(signal.SIGTERM) is notes:  # all processes have agreed to end
            notes.restore(signal.SIGTERM, terminate)
        notes.check()


@contextlib.contextmanager
def _leaving(notes: _Notes, leave: Leave | None, is_shared: bool) -> Iterator[None]:
    """Call `leave` before a signal ends the training, and handle signals for which the user has no handler."""
    before = notes.leave, notes.is_shared
    notes.leave, notes.is_shared = leave or notes.leave, is_shared or leave is not None
    wanted = (signal.SIGTERM, signal.SIGHUP) if job.process_count() == 1 else (signal.SIGHUP,)  # JAX handles SIGTERM
    handled = [each for each in wanted if leave is not None and _has_default(each)]
    for each in handled:
        signal.signal(each, notes)
    try:
        yield
    finally:
        notes.leave, notes.is_shared = before
        for each in handled:
            notes.restore(each, signal.SIG_DFL)


def shield() -> contextlib.AbstractContextManager[Any]:
    """Return a reusable context in which signals are recorded, and raise nothing: no dispatched state is lost."""
    notes = signal.getsignal(signal.SIGINT)
    return notes if isinstance(notes, _Notes) and _is_main_thread() else contextlib.nullcontext()


def _has_default(signum: int) -> bool:
    return signal.getsignal(signum) is signal.SIG_DFL


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
