"""The execution loop shared by `fit`, `evaluate` and `predict`.

fit, evaluate and predict are one loop with three kinds of steps. At most two executions are in flight: the batches of
the second are transferred while the first runs, and more would deadlock fake devices and gain nothing.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax

from keras_dist._support.types import PyTree
from keras_dist.distribution.jobs import heartbeat
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
        signal = jax.tree.leaves(result)[0]  # all outputs of a program are ready at once
        steps, rows = execution.steps, execution.rows
        results.append((rows, result))
        if mode == "train":
            heartbeat.current().note_begun(steps)
        waiting.append((steps, rows, result, signal, timer.dispatched(began, signal, steps * rows, compiled)))
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
