"""`Progress`: how far a training has come, so that another process can go on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_dist.data.batching import Batching, Streaming
from keras_dist.data.cursor import Cursor
from keras_dist.distribution.placement import place_copy
from keras_dist.errors import ModelError


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """How far a training has come, between two batches.

    Attributes:
        cursor: the epoch, how many of its batches and rows are done, and where the iterator of a data set is.
        first_epoch: the epoch at which the training began.
        shuffle_key: with the number of an epoch fixes the order of rows; None for their own.
        form: of the examples: rows, batch size, steps of an epoch, as far as they are known.
        is_stopping: whether it ends before the next epoch.
        tallies: the states of loss and metrics after the last batch; none at the begin of an epoch.
        callbacks: what each of them needs to go on; see `CallbackList.get_state`.
    """

    cursor: Cursor
    first_epoch: int
    shuffle_key: tuple[int, ...] | None
    form: Mapping[str, int | None]
    is_stopping: bool = False
    tallies: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    callbacks: Any = None

    @classmethod
    def begun(cls, examples: Batching | Streaming, epochs: range, shuffle_key: tuple[int, ...] | None) -> Progress:
        """That of a training before its first batch."""
        form = {"steps_per_epoch": examples.steps}
        if isinstance(examples, Batching):
            form |= {"rows": examples.source.length, "batch_size": examples.batch_size}
        return cls(Cursor(epochs.start), epochs.start, shuffle_key, form)

    def at_epoch(self, epoch: int) -> Progress:
        """Before the first batch of an epoch."""
        return dataclasses.replace(self, cursor=Cursor(epoch), tallies={})

    def epochs(self, stop: int) -> range:
        """All epochs of the training, if it ends before `stop`."""
        return range(self.first_epoch, stop)

    def after(self, steps: int, rows: int, tallies: Mapping[str, Any]) -> Progress:
        """So many batches, of so many rows each, later in the same epoch."""
        cursor = self.cursor
        cursor = Cursor(cursor.epoch, cursor.batch + steps, cursor.rows + steps * rows)
        return dataclasses.replace(self, cursor=cursor, tallies=tallies)

    def check_continues(self, other: Progress) -> None:
        """Check that the examples of this training are those of another one that it is to go on with.

        Raises:
            ModelError: batches would be others; a training between two epochs may go on with others, if each epoch
                has all of them.
        """
        if self.form == other.form:
            return
        if not other.cursor.batch and self.form["steps_per_epoch"] is None and other.form["steps_per_epoch"] is None:
            return
        raise ModelError(
            "fit cannot go on in the middle of an epoch: the batches are not those of the interrupted training",
            given=", ".join(f"{name}={value}" for name, value in self.form.items()),
            expected=", ".join(f"{name}={value}" for name, value in other.form.items()),
            fix="call fit with the same examples, batch_size and steps_per_epoch; or begin anew in another directory",
        )


def restored(tallies: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The states of tallies that another process has had, on the devices of this one.

    Args:
        tallies: by name nested lists of arrays of the host.
        like: the states as they are here.

    Raises:
        ModelError: loss and metrics are others here.
    """
    given, wanted = _shapes(tallies), _shapes(like)
    if given != wanted:
        raise ModelError(
            "fit cannot go on in the middle of an epoch: loss and metrics are not those of the interrupted training",
            given=f"loss and metrics with states of shapes {wanted}",
            expected=f"{given}",
            fix="compile the model with the same loss and metrics; or begin anew in another directory",
        )
    leaves, treedef = jax.tree.flatten({name: like[name] for name in tallies})
    values = jax.tree.leaves(dict(tallies))
    return treedef.unflatten([place_copy(value, leaf.sharding) for value, leaf in zip(values, leaves, strict=True)])


def _shapes(tallies: Mapping[str, Any]) -> dict[str, list[tuple[int, ...]]]:
    return {name: [np.shape(leaf) for leaf in jax.tree.leaves(tallies[name])] for name in sorted(tallies)}
