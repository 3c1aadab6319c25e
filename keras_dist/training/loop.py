"""The one loop: fit, evaluate and predict are it with three steps."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Literal, Protocol

import jax

from keras_dist._support.types import PyTree
from keras_dist.distribution.jobs import heartbeat
from keras_dist.distribution.jobs.consistency import Fingerprint
from keras_dist.training.executions import Execution
from keras_dist.training.throughput import StepTimer

Mode = Literal["train", "test", "predict"]

MAX_IN_FLIGHT = 2
"""Executions: more would deadlock fake CPU devices (see `_environment`), and gain nothing: one runs, one waits."""


class Hooks(Protocol):
    """All that training knows of callbacks."""

    def begin(self, mode: Mode) -> None:
        """Before the first batch, or the first epoch."""
        ...

    def end(self, mode: Mode, logs: Mapping[str, float] | None = None) -> None:
        """After the last."""
        ...

    def batch_begin(self, mode: Mode, batch: int) -> None:
        """Before a group of steps is dispatched, whose first batch this is."""
        ...

    def batch_end(self, mode: Mode, batch: int, full: int, make_logs: Callable[[], Mapping[str, Any]]) -> None:
        """After a group of steps was dispatched, with its last batch, and that of a full group; they may still run."""
        ...

    def sees_every_batch(self, mode: Mode) -> bool:
        """Whether one of them looks at single batches: no execution takes more than one step then."""
        ...

    def on_epoch_begin(self, epoch: int) -> None:
        """Before an epoch of training."""
        ...

    def on_epoch_end(self, epoch: int, logs: MutableMapping[str, Any] | None) -> None:
        """After an epoch of training and its validation."""
        ...

    @property
    def handles_interrupts(self) -> bool:
        """Whether one of them has something to do before a signal ends the training."""
        ...

    def on_train_interrupt(self, signum: int) -> None:
        """Between two steps, when a signal is about to end the training."""
        ...

    def on_train_exit(self, error: BaseException | None) -> None:
        """When a training is over, however it ended."""
        ...

    def facts(self) -> Fingerprint:
        """What must be equal in all processes of a job."""
        ...

    def get_state(self) -> PyTree:
        """What they need to go on in another process."""
        ...

    def set_state(self, state: PyTree) -> None:
        """Go on where others, in another process, have been."""
        ...


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

    `dispatch` starts an execution, and returns arrays that are ready when it is done, and how many programs it
    compiled. Hooks are called once for `group` steps, with logs that `as_logs` makes of the rows and arrays of each
    execution. They also get the last batch of a full group, which Keras reports even where the data ends earlier.
    `collect` gets the rows and arrays of each finished execution, in order.
    """
    waiting: collections.deque[tuple[int, int, PyTree, PyTree, float]] = collections.deque()

    def finish_oldest() -> None:
        steps, rows, result, signal, started = waiting.popleft()
        signal.block_until_ready()
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
        signal = jax.tree.leaves(result)[0]  # all that a program computes is ready at once
        steps, rows = execution.steps, execution.rows
        results.append((rows, result))
        if mode == "train":
            heartbeat.current().note_begun(steps)
        waiting.append((steps, rows, result, signal, timer.dispatched(began, signal, steps * rows, compiled)))
        del execution  # its arrays are memory that the next batch can have
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
