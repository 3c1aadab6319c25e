"""`ArraySource`: batches of arrays in memory, copied and padded to a number of rows that the mesh divides."""

from __future__ import annotations

import jax
import numpy as np

from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import PyTree
from keras_dist.data.batch import Batch
from keras_dist.data.conversion import Arrays, SparseRows, all_as_arrays, common_length, named_leaves
from keras_dist.data.source import RowSource


class ArraySource(RowSource):
    """Examples in memory: arrays, or pytrees of arrays, of equal length.

    Args:
        x: inputs; every leaf (examples, ...).
        y: targets of the same length, or None.
        sample_weight: a weight for each example, or None.
        name: prefix of `x`, `y` and `sample_weight` in error messages, such as `"validation "`.

    Raises:
        DataError: an argument is not an array of numbers or is empty, or the lengths differ.
    """

    way_of_targets = "pass y"

    def __init__(self, x: PyTree, y: PyTree = None, sample_weight: PyTree = None, name: str = "") -> None:
        self.name, self.title = name, f"{name}arrays"
        self._arrays = all_as_arrays((x, y, sample_weight), name)
        self.length = common_length(self._arrays, name)
        self._leaves, self._tree = jax.tree.flatten(self._arrays)
        named = enumerate(named_leaves(self._arrays, name))
        self._in_files = [(index, leaf_name) for index, (leaf_name, leaf) in named if isinstance(leaf, np.memmap)]
        self.form = (self._tree, tuple((leaf.shape[1:], leaf.dtype) for leaf in self._leaves))

    @property
    def like(self) -> Arrays:
        """The arrays."""
        return self._arrays

    @property
    def arrays(self) -> Arrays:
        """`(x, y, sample_weight)` as numpy arrays, possibly the caller's own, or `SparseRows`."""
        return self._arrays

    def split(self, at: int) -> tuple[ArraySource, ArraySource]:
        """Return the examples before row `at`, and those from there on, as validation data."""
        first, last = (
            jax.tree.map(lambda leaf, part=part: leaf[part], self._arrays) for part in (slice(at), slice(at, None))
        )
        return ArraySource(*first, name=self.name), ArraySource(*last, name="validation ")

    def gather(self, padded: np.ndarray, rows: int, stacked: int | None = None) -> Batch:
        """Return the rows at these indices as a batch or a stack of batches, each with `rows` real rows first."""
        gathered = [_rows_of(array, padded) for array in self._leaves]
        for index, name in self._in_files:
            check_fits(gathered[index].reshape(padded.size, *self._leaves[index].shape[1:]), name, padded)
        return Batch(self._tree.unflatten(gathered), rows, (self.form, padded.shape), self.name, stacked)


def _rows_of(array: np.ndarray | SparseRows, numbers: np.ndarray) -> np.ndarray:
    """Copy these rows, so that nobody can change the rows of a step in flight."""
    if isinstance(array, SparseRows) or array.flags.c_contiguous:
        return array.take(numbers, axis=0)
    return array[numbers]  # `take` would copy all of an array that is not contiguous
