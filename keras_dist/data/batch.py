"""`Batch`: padded rows that can be placed on the mesh. `unpack`: the parts of an element of a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.data.conversion import Arrays, describe
from keras_dist.distribution.jobs.process_rows import BatchSlice
from keras_dist.errors import DataError, shorten


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch in freshly allocated memory, or a stack of several batches of equal length.

    Attributes:
        arrays: `(x, y, sample_weight)`, each leaf (padded rows, ...), in a stack (batches, padded rows, ...); y and
            sample_weight may be None.
        rows: number of real rows, in a job of several processes of the global batch; the others are padding that
            repeats the last real row.
        form: equal for batches whose arrays have the same structure, shapes and dtypes.
        name: prefix of the data set's name in error messages, such as `"validation "`.
        stacked: number of batches in the stack; None for a single batch.
        portion: which rows of the global batch these are; None for all.
    """

    arrays: Arrays
    rows: int
    form: Hashable = None
    name: str = ""
    stacked: int | None = None
    portion: BatchSlice | None = None

    def describe(self) -> str:
        """Return the arrays with the shapes that a step sees."""
        first = 1 if self.stacked is None else 2
        return describe(self.arrays, self.name, lambda leaf: (self.rows, *leaf.shape[first:]))


def stacked(batches: Iterator[Batch], count: int) -> Iterator[Batch]:
    """Stack each run of `count` consecutive batches of equal form and length; yield the others one by one."""
    waiting: list[Batch] = []
    for batch in batches:
        if waiting and (batch.form, batch.rows) != (waiting[0].form, waiting[0].rows):
            yield from waiting
            waiting = []
        waiting.append(batch)
        if len(waiting) == count > 1:
            arrays = jax.tree.map(lambda *leaves: np.stack(leaves), *(one.arrays for one in waiting))
            yield dataclasses.replace(waiting[0], arrays=arrays, stacked=count)
            waiting = []
        elif count == 1:
            yield waiting.pop()
    yield from waiting


def unpack(element: PyTree, name: str) -> Arrays:
    """Return `(x, y, sample_weight)`, with None for what is missing.

    Source: `keras.utils.unpack_x_y_sample_weight`.
    """
    if not isinstance(element, tuple | list):
        return element, None, None
    if 1 <= len(element) <= 3:
        x, y, sample_weight = (*element, None, None)[:3]
        return x, y, sample_weight
    given = f"a {type(element).__name__} of {len(element)}: {shorten(element)}"
    fix = "put several inputs in a tuple of their own: ((a, b), y)"
    raise DataError(f"{name} must be x, (x,), (x, y) or (x, y, sample_weight)", given=given, fix=fix)


def unpack_x_y_sample_weight(data: PyTree) -> Arrays:
    """Return `(x, y, sample_weight)` of a batch, with None for what is missing.

    Args:
        data: `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`, as steps of a model are given it.

    Raises:
        DataError: it is none of these.
    """
    return unpack(data, "data")


def pack_x_y_sample_weight(x: PyTree, y: PyTree = None, sample_weight: PyTree = None) -> PyTree:
    """Return a batch as steps of a model are given it: without what is missing at its end; inputs alone as they are.

    Args:
        x: inputs.
        y: targets, or None.
        sample_weight: weights of the examples, or None.
    """
    if sample_weight is not None:
        return x, y, sample_weight
    if y is not None:
        return x, y
    return (x,) if isinstance(x, tuple | list) else x
