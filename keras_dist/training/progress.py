"""`Progress`: the position of a training, from which another process can resume; `TrainingRun`: a running training.

The loop notes its `Progress` after each dispatch, and nobody else counts. Callbacks restore arrays in `on_train_begin`;
the loop gives all callbacks their states after that and begins at the cursor, so that the order of callbacks does not
matter.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.data.batching import Batching, Streaming
from keras_dist.data.cursor import Cursor
from keras_dist.distribution.placement import place_copy
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.jobs import job
from keras_dist.training.compile_config import StepOptions
from keras_dist.training.loop import MAX_IN_FLIGHT, Hooks

_PARTS = "processes with their own rows"


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """The position of a training between two batches."""

    cursor: Cursor  # epoch, finished batches and rows in it, and the position of a dataset's iterator
    first_epoch: int
    shuffle_key: tuple[int, ...] | None  # fixes, with the number of an epoch, the order of rows
    form: Mapping[str, int | None]  # rows, batch size and steps of an epoch, if they are known
    is_stopping: bool = False  # the training ends before the next epoch
    metric_states: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)  # empty at the begin of an epoch
    callbacks: PyTree = None  # see `CallbackList.get_state`

    @classmethod
    def from_json(cls, state: Any) -> Self:
        """Return the progress from the result of `to_json`."""
        names = ("cursor", *_IS_FIELD)
        if (
            not isinstance(state, Mapping)
            or set(state) != set(names)
            or not all(_IS_FIELD[name](value) for name, value in state.items() if name != "cursor")
        ):
            fix = f"pass the entry of a snapshot: a dict of {', '.join(names)}"
            raise DataError("the progress of a training cannot be read", given=shorten(state), fix=fix)
        cursor, key = Cursor.from_json(state["cursor"]), state["shuffle_key"]
        fields = {**state, "cursor": cursor, "shuffle_key": None if key is None else tuple(key)}
        return cls(metric_states=fields.pop("tallies"), **fields)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict; `metric_states` is stored as `tallies`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"tallies": fields.pop("metric_states"), **fields, "cursor": self.cursor.to_json()}

    @classmethod
    def begun(
        cls, examples: Batching | Streaming, epochs: range, shuffle_key: tuple[int, ...] | None, parts: int | None
    ) -> Self:
        """Return the progress before the first batch; `parts` of it are passed by different processes, if not None."""
        form = {"steps_per_epoch": examples.steps, **examples.source.resumes_with}
        form |= {} if parts is None else {_PARTS: parts}
        if isinstance(examples, Batching):
            form |= {"rows": examples.source.length, "batch_size": examples.batch_size}
        return cls(Cursor(epochs.start), epochs.start, shuffle_key, form)

    def at_epoch(self, epoch: int) -> Self:
        """Return the progress before the first batch of an epoch."""
        return dataclasses.replace(self, cursor=Cursor(epoch), metric_states={})

    def epochs(self, stop: int) -> range:
        """Return all epochs of the training, which ends before `stop`."""
        return range(self.first_epoch, stop)

    def after(self, batches: int, rows: int, metric_states: Mapping[str, PyTree]) -> Self:
        """Return the progress after more batches of the same epoch, with `rows` rows in all."""
        cursor = self.cursor
        cursor = Cursor(cursor.epoch, cursor.batch + batches, cursor.rows + rows)
        return dataclasses.replace(self, cursor=cursor, metric_states=metric_states)

    def check_continues(self, other: Self, zeros: Mapping[str, PyTree]) -> None:
        """Check that this training can resume at `other`: with equal batches, loss and metrics.

        Between two epochs batches may differ if each epoch has all of them. `zeros` are the initial metric states.
        """
        if other.metric_states:
            _check_metric_states(other.metric_states, zeros)
        if self.form == other.form:
            return
        if not other.cursor.batch and self.form["steps_per_epoch"] is None and other.form["steps_per_epoch"] is None:
            return
        parts, before = self.form.get(_PARTS), other.form.get(_PARTS)
        if parts != before and None not in (parts, before):
            raise ModelError(
                "fit cannot resume within an epoch: the number of processes that pass their own rows differs",
                given=f"auto_shard_dataset=False, and {parts} processes that pass different rows",
                expected=f"{before} processes, as in the interrupted training",
                fix=f"start {before} processes; or save at the ends of epochs, from which any number of processes "
                "resumes; or train with auto_shard_dataset=True and all rows in every process",
            )
        summary = "fit cannot resume within an epoch: the batches differ from the interrupted training"
        given = ", ".join(f"{name}={value}" for name, value in self.form.items())
        expected = ", ".join(f"{name}={value}" for name, value in other.form.items())
        fix = "call fit with the same examples, batch_size and steps_per_epoch; or start again in another directory"
        raise ModelError(summary, given=given, expected=expected, fix=fix)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_form(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and "steps_per_epoch" in value
        and all(one is None or _is_count(one) for one in value.values())
    )


_IS_FIELD: dict[str, Callable[[Any], bool]] = {
    "first_epoch": _is_count,
    "shuffle_key": lambda value: value is None or (isinstance(value, list) and all(map(_is_count, value))),
    "form": _is_form,
    "is_stopping": lambda value: isinstance(value, bool),
    "tallies": lambda value: (
        isinstance(value, dict) and all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(value))
    ),
    "callbacks": lambda value: (
        isinstance(value, list)
        and all(isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in value)
    ),
}
"""Checks of the fields in a file."""


def restored(metric_states: Mapping[str, PyTree], like: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Place the metric states of another process on the devices of this one."""
    leaves, treedef = jax.tree.flatten({name: like[name] for name in metric_states})
    values = jax.tree.leaves(dict(metric_states))
    return treedef.unflatten([place_copy(value, leaf.sharding) for value, leaf in zip(values, leaves, strict=True)])


class TrainingRun:
    """One call of `fit`: its examples, callbacks and progress; `zeros` are the initial metric states.

    Steps are counted, and their `Progress` is made when it is read: making it took 10 us of each step.
    """

    def __init__(
        self,
        examples: Batching | Streaming,
        hooks: Hooks,
        progress: Progress,
        zeros: Mapping[str, PyTree],
        options: StepOptions,
    ) -> None:
        self.progress = progress
        self._examples, self._hooks, self._zeros, self._options = examples, hooks, zeros, options
        self._thread = threading.current_thread()
        self._has_begun = False

    @property
    def progress(self) -> Progress:
        """The position of the training."""
        batches, rows, metric_states = self._further
        return self._progress.after(batches, rows, metric_states) if batches else self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._progress, self._further = progress, (0, 0, progress.metric_states)

    def advance(self, steps: int, rows: int, metric_states: Mapping[str, PyTree]) -> None:
        """Count `steps` more batches of `rows` rows each."""
        batches, before, _ = self._further
        self._further = batches + steps, before + steps * rows, metric_states

    def begin(self) -> Progress:
        """Return the start of the training: before the first batch, or the progress set by a callback."""
        self._has_begun = True
        if self.progress.callbacks is not None:
            metric_states = restored(self.progress.metric_states, self._zeros) if self.progress.metric_states else {}
            self._hooks.set_state(self.progress.callbacks)
            self.progress = dataclasses.replace(self.progress, metric_states=metric_states)
        return self.progress

    def current(self, is_stopping: bool) -> Progress:
        """Return the current progress with the state of callbacks."""
        if self._thread is not threading.current_thread():  # its callbacks may be behind its arrays
            summary = "the state of a training cannot be taken from another thread: fit is running"
            given = f"a snapshot in thread {threading.current_thread().name!r}, of a fit in {self._thread.name!r}"
            fix = "pass BackupAndRestore to fit, or save in a callback; model.save(path) works in any thread"
            raise ModelError(summary, given=given, fix=fix)
        cursor = self.progress.cursor
        if isinstance(self._examples, Streaming) and self._options.steps_per_execution in (None, 1) and cursor.batch:
            # the iterator is ahead of the training if batches are prefetched, and each process has its own
            is_exact = self._options.prefetch <= MAX_IN_FLIGHT and job.process_count() == 1
            cursor = dataclasses.replace(cursor, source=self._examples.state() if is_exact else None)
        callbacks = self._hooks.get_state()
        return dataclasses.replace(self.progress, cursor=cursor, is_stopping=is_stopping, callbacks=callbacks)

    def check_continues(self, progress: Progress) -> None:
        """Check that this training has not begun, and can resume at `progress`."""
        if self._has_begun:
            raise nothing_to_continue()
        self.progress.check_continues(progress, self._zeros)


def nothing_to_continue() -> ModelError:
    """Return the error of `continue_from` when no training is about to begin."""
    fix = "restore the model alone, or pass BackupAndRestore to fit"
    return ModelError("no training can be resumed here", given="continue_from outside of on_train_begin", fix=fix)


def _check_metric_states(metric_states: Mapping[str, PyTree], like: Mapping[str, PyTree]) -> None:
    given, wanted = _forms(metric_states), _forms(like)
    if given != wanted:
        raise ModelError(
            "fit cannot resume within an epoch: loss and metrics differ from the interrupted training",
            given=f"loss and metrics with states {wanted}",
            expected=f"{given}",
            fix="compile the model with the same loss and metrics; or start again in another directory",
        )


def _forms(metric_states: Mapping[str, PyTree]) -> dict[str, list[str]]:
    leaves = {name: jax.tree.leaves(metric_states[name]) for name in sorted(metric_states)}
    return {name: [f"{leaf.dtype}{list(leaf.shape)}" for leaf in found] for name, found in leaves.items()}
