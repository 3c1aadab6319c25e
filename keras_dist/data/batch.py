"""`Batch`: rows that are ready for the mesh, padded to what it divides."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

from keras_dist.data.checks import describe
from keras_dist.distribution.process_rows import Portion


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

    arrays: tuple[Any, Any, Any]
    rows: int
    form: Hashable = None
    name: str = ""
    stacked: int | None = None
    portion: Portion | None = None

    def describe(self) -> str:
        """The arrays with the shapes that a step sees."""
        first = 1 if self.stacked is None else 2
        return describe(self.arrays, self.name, lambda leaf: (self.rows, *leaf.shape[first:]))
