"""`ShapeSource`: a batch of which nothing but the shapes is known."""

from __future__ import annotations

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import Batch
from keras_dist.data.conversion import Arrays, all_as_arrays, common_length, with_lists_as_arrays
from keras_dist.data.source import RowSource


class ShapeSource(RowSource):
    """A batch of which nothing but the shapes is known, for steps that are planned and not run.

    Args:
        x: inputs: arrays, `jax.ShapeDtypeStruct`s, or pytrees of them; every leaf (rows, ...).
        y: targets of the same length, or None.
        sample_weight: a weight for each row, or None.

    Raises:
        DataError: an argument is not an array of numbers or is empty, or the lengths differ.
    """

    way_of_targets = "pass batch=(x, y)"

    def __init__(self, x: PyTree, y: PyTree = None, sample_weight: PyTree = None) -> None:
        self.name, self.title = "", "the batch"
        given = all_as_arrays(jax.tree.map(_without_rows, with_lists_as_arrays((x, y, sample_weight))), "")
        self.length = common_length(jax.tree.map(lambda leaf: leaf, given), "")
        self._one = ArraySource(*jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), given))
        self.form = (self._one.form, self.length)

    @property
    def like(self) -> Arrays:
        """`(x, y, sample_weight)` as shapes."""
        return self.gather(np.arange(self.length), self.length).arrays

    def gather(self, padded: np.ndarray, rows: int, stacked: int | None = None) -> Batch:
        """Return the shapes of a batch, or of a stack of batches, whose padding counts as rows.

        The program that runs takes the rows that are real out of the padded ones, which XLA does where they lie.
        """
        of_one = self._one.gather(np.zeros(1, int), 1).arrays

        def shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*padded.shape, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))

        del rows
        return Batch(jax.tree.map(shape, of_one), padded.shape[-1], (self.form, padded.shape), "", stacked)


def _without_rows(leaf: PyTree) -> PyTree:
    """An array that takes no memory in the place of a shape; anything else as it is."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
