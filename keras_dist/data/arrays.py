"""`ArraySource`: batches of arrays in memory. `ShapeSource`: a batch with known shapes only.

The order of rows is numpy's permutation by seed and epoch, and a batch is one `take`: element by element, as in grain,
took 900 times as long for batches of 128.
"""

from __future__ import annotations

import jax
import numpy as np

from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import PyTree
from keras_dist.data.batch import Batch
from keras_dist.data.conversion import (
    Arrays,
    SparseRows,
    all_as_arrays,
    common_length,
    named_leaves,
    with_lists_as_arrays,
)
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
        """`(x, y, sample_weight)` as arrays."""
        return self._arrays

    @property
    def arrays(self) -> Arrays:
        """`(x, y, sample_weight)` as numpy arrays, possibly the caller's own, or `SparseRows`."""
        return self._arrays

    def split(self, at: int) -> tuple[ArraySource, ArraySource]:
        """Return the examples before row `at`, and the others as validation data."""
        first, last = (
            jax.tree.map(lambda leaf, part=part: leaf[part], self._arrays) for part in (slice(at), slice(at, None))
        )
        return ArraySource(*first, name=self.name), ArraySource(*last, name="validation ")

    def gather(self, padded: np.ndarray, rows: int, stacked: int | None = None) -> Batch:
        """Return rows by index as a batch or a stack of batches, each with `rows` real rows first."""
        gathered = [_rows_of(array, padded) for array in self._leaves]
        for index, name in self._in_files:
            check_fits(gathered[index].reshape(padded.size, *self._leaves[index].shape[1:]), name, padded)
        return Batch(self._tree.unflatten(gathered), rows, (self.form, padded.shape), self.name, stacked)


def _rows_of(array: np.ndarray | SparseRows, numbers: np.ndarray) -> np.ndarray:
    """Copy these rows, so that the rows of a step in flight cannot change."""
    if isinstance(array, SparseRows) or array.flags.c_contiguous:
        return array.take(numbers, axis=0)
    return array[numbers]  # `take` would copy a non-contiguous array as a whole


class ShapeSource(RowSource):
    """A batch with known shapes only, `jax.ShapeDtypeStruct`s or arrays, for steps that are planned and not run."""

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
        """Return the shapes of a batch, or of a stack of batches, with padding as real rows."""
        del rows  # a compiled step selects the real rows from the padded ones, which moves nothing
        of_one = self._one.gather(np.zeros(1, int), 1).arrays

        def shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*padded.shape, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))

        return Batch(jax.tree.map(shape, of_one), padded.shape[-1], (self.form, padded.shape), "", stacked)


def _without_rows(leaf: PyTree) -> PyTree:
    """Replace a shape by an array that takes no memory; return anything else unchanged."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
