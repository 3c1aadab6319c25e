"""`Batch`: rows that are ready for the mesh, padded to what it divides; and what sources give for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from keras_dist.data.conversion import Arrays, describe
from keras_dist.distribution.process_rows import Portion
from keras_dist.errors import DataError, shorten


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of a data set, gathered into fresh memory: one batch, or several of one length as a stack.

    Attributes:
        arrays: `(x, y, sample_weight)`, each leaf (padded rows, ...), in a stack (batches, padded rows, ...); y and
            sample_weight may be None.
        rows: how many of the rows are real; the others repeat the last one. Of several processes, those of the global
            batch.
        form: alike for batches whose arrays have the same structure, shapes and dtypes.
        name: of the data set, as errors call it, such as `"validation "`.
        stacked: how many batches the stack holds; None for a lone batch.
        portion: which rows of the global batch these are; None for all.
    """

    arrays: Arrays
    rows: int
    form: Hashable = None
    name: str = ""
    stacked: int | None = None
    portion: Portion | None = None

    def describe(self) -> str:
        """Return the arrays with the shapes that a step sees."""
        first = 1 if self.stacked is None else 2
        return describe(self.arrays, self.name, lambda leaf: (self.rows, *leaf.shape[first:]))


def stacked(batches: Iterator[Batch], count: int) -> Iterator[Batch]:
    """Stack `count` batches of one form and length that follow each other; yield the others one by one."""
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


def unpack(element: Any, name: str) -> Arrays:
    """Return `(x, y, sample_weight)`, with None for what is missing.

    Source: `keras.utils.unpack_x_y_sample_weight`.
    """
    if not isinstance(element, tuple | list):
        return element, None, None
    if 1 <= len(element) <= 3:
        x, y, sample_weight = (*element, None, None)[:3]
        return x, y, sample_weight
    raise DataError(
        f"{name} cannot be used",
        given=f"a {type(element).__name__} of {len(element)}: {shorten(element)}",
        expected="x, (x,), (x, y) or (x, y, sample_weight)",
        fix="put several inputs in a tuple of their own: ((a, b), y)",
    )
