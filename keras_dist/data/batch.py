"""`Batch`: padded rows that can be placed on the mesh. `unpack`, `BatchKeys`: the parts of an element of a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Self

import jax
import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree
from keras_dist.data.conversion import Arrays, describe
from keras_dist.distribution.process_rows import BatchSlice
from keras_dist.errors import DataError, shorten, unknown_name_error


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch in freshly allocated memory, or a stack of several batches of equal length.

    Attributes:
        arrays: `(x, y, sample_weight)`, each leaf (padded rows, ...), in a stack (batches, padded rows, ...); y and
            sample_weight may be None.
        rows: number of real rows of the global batch; the others are padding that repeats the last real row.
        form: equal for batches whose arrays have the same structure, shapes and dtypes.
        name: prefix of the dataset's name in error messages, such as `"validation "`.
        stacked: number of batches in the stack; None for a single batch.
        portion: the rows of the global batch that these are; None for all.
    """

    arrays: Arrays
    rows: int
    form: Hashable = None
    name: str = ""
    stacked: int | None = None
    portion: BatchSlice | None = None

    def describe(self) -> str:
        """Return the arrays with the shapes of a step's arguments, as text."""
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
    """Return `(x, y, sample_weight)`, with None for missing parts, as `keras.utils.unpack_x_y_sample_weight`."""
    if not isinstance(element, tuple | list):
        return element, None, None
    if 1 <= len(element) <= 3:
        x, y, sample_weight = (*element, None, None)[:3]
        return x, y, sample_weight
    given = f"a {type(element).__name__} of {len(element)}: {shorten(element)}"
    fix = "put several inputs in a separate tuple: ((a, b), y)"
    raise DataError(f"{name} must be x, (x,), (x, y) or (x, y, sample_weight)", given=given, fix=fix)


def unpack_x_y_sample_weight(data: PyTree) -> Arrays:
    """Return `(x, y, sample_weight)` of a batch, with None for missing parts.

    Args:
        data: `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`, as passed to the steps of a model.

    Raises:
        DataError: `data` is a tuple or list of another length.
    """
    return unpack(data, "data")


def pack_x_y_sample_weight(x: PyTree, y: PyTree = None, sample_weight: PyTree = None) -> PyTree:
    """Return a batch as passed to the steps of a model: without missing parts at its end, and inputs alone unchanged.

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


_PARTS = ("x", "y", "sample_weight")


@dataclasses.dataclass(frozen=True)
class BatchKeys:
    """Keys, or structures of keys, of inputs, targets and weights in batches that are dicts."""

    x: PyTree
    y: PyTree = None
    sample_weight: PyTree = None

    def of_inputs(self) -> Self:
        """Return the keys of inputs alone."""
        return dataclasses.replace(self, y=None, sample_weight=None)

    def parts(self, batch: PyTree, name: str, convert: Callable[[Any, str], Any] | None = None) -> PyTree:
        """Return `(x, y, sample_weight)`, converted, of a batch or example that is a dict; return others unchanged."""
        if isinstance(batch, tuple) and all(part is None for part in batch[1:]):  # (x, None, None) of a DataLoader
            batch = batch[0] if batch and isinstance(batch[0], Mapping) else batch
        if not isinstance(batch, Mapping):
            return batch

        def entry(key: str) -> Any:
            if key not in batch:
                fix = f"let the dataset return {key!r}, or name another key in compile(..., batch_keys=...)"
                raise unknown_name_error(f"{name} has no key", key, map(str, batch), fix=fix, error=DataError)
            return batch[key] if convert is None else convert(batch[key], repr(key))

        return jax.tree.map(entry, (self.x, self.y, self.sample_weight))


def check_batch_keys(given: Any) -> BatchKeys | None:
    """Return the checked argument `batch_keys` of `compile`."""
    if given is None:
        return None
    is_dict = isinstance(given, Mapping) and "x" in given and set(given) <= {*_PARTS}
    keys = [key for part in given.values() for key in (jax.tree.leaves(part) or [part])] if is_dict else [None]
    if not all(isinstance(key, str) for key in keys):
        fix = 'for example batch_keys=dict(x="input_ids", y="labels", sample_weight="attention_mask")'
        expected = "a dict of 'x', 'y' and 'sample_weight', each a key or a structure of keys, with at least 'x'"
        raise argument_error("batch_keys", given, expected, fix=fix)
    return BatchKeys(**given)
