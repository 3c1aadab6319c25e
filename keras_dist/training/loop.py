"""The one loop: fit, evaluate and predict are it with three steps."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import jax

from keras_dist.data.arrays import Batch

Mode = Literal["train", "test", "predict"]

MAX_STEPS_IN_FLIGHT = 2
"""More would deadlock fake CPU devices (see `_environment`), and gain nothing: one step runs while one waits."""


class Hooks(Protocol):
    """All that training knows of callbacks."""

    def begin(self, mode: Mode) -> None:
        """Before the first batch, or the first epoch."""
        ...

    def end(self, mode: Mode, logs: Mapping[str, float] | None = None) -> None:
        """After the last."""
        ...

    def batch_begin(self, mode: Mode, batch: int) -> None:
        """Before a batch is dispatched."""
        ...

    def batch_end(self, mode: Mode, batch: int, logs: Mapping[str, float] | None) -> None:
        """After a batch was dispatched; it may still be running."""
        ...

    def on_epoch_begin(self, epoch: int) -> None:
        """Before an epoch of training."""
        ...

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None) -> None:
        """After an epoch of training and its validation."""
        ...


def run_steps(
    mode: Mode,
    batches: Iterable[Batch],
    dispatch: Callable[[Batch], Any],
    hooks: Hooks,
    check_interrupt: Callable[[], None],
    *,
    as_logs: Callable[[Any], Mapping[str, float] | None] = lambda result: None,
    collect: Callable[[Batch, Any], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Any:
    """Dispatch every batch, with a bounded number of steps in flight.

    Args:
        mode: which batch hooks are called.
        batches: what to run over.
        dispatch: starts one step and returns arrays that are ready when it is done.
        hooks: called around each step.
        check_interrupt: raises after a step when Ctrl-C was pressed in it.
        as_logs: what the hooks get to see of what `dispatch` returned.
        collect: called with each finished step, in order.
        should_stop: asked after each step.

    Returns:
        What the last `dispatch` returned; None without batches.
    """
    in_flight: collections.deque[tuple[Batch, Any]] = collections.deque()

    def finish_oldest() -> None:
        batch, result = in_flight.popleft()
        jax.block_until_ready(result)
        if collect is not None:
            collect(batch, result)

    result = None
    for index, batch in enumerate(batches):
        if len(in_flight) >= MAX_STEPS_IN_FLIGHT:
            finish_oldest()
        hooks.batch_begin(mode, index)
        result = dispatch(batch)
        in_flight.append((batch, result))
        hooks.batch_end(mode, index, as_logs(result))
        check_interrupt()
        if should_stop():
            break
    while in_flight:
        finish_oldest()
    return result
