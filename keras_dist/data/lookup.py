"""`LookupSource`: examples that are read by number, as from tfds, torch or Hugging Face."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.data.batch import Batch, stacked, unpack
from keras_dist.data.conversion import Arrays, as_arrays, dense, describe, is_plain, noting, to_host
from keras_dist.data.source import RowNumbers, RowSource, register_source
from keras_dist.data.streams import NumberedSource, read_in_threads
from keras_dist.errors import DataError, shorten

_THREADS = 1  # with more, datasets that seek and read a file in two steps, or share a buffer, would mix up rows

_AHEAD = 2


@register_source
class LookupSource(RowSource):
    """Examples of an object with `__len__` and `__getitem__`, read in a thread while the devices compute.

    Args:
        dataset: `dataset[i]` is an example: `x`, `(x, y)` or `(x, y, sample_weight)`, each a number, an array or a
            pytree of them, or in a dict a list of numbers. `dataset.__getitems__(numbers)`, if it exists, returns a
            list of examples.
        name: prefix of the data's name in error messages, such as `"validation "`.

    Raises:
        DataError: the dataset is empty, or its first example is invalid.
    """

    def __init__(self, dataset: Any, name: str = "") -> None:
        self._dataset, self.name, self.length = dataset, name, len(dataset)
        self.title = f"{name}{shorten(dataset)}"
        if self.length == 0:
            given = f"{self.title} with 0 examples"
            raise DataError(f"the {name}dataset is empty", given=given, fix="check the path or filter that made it")
        self._first = self._checked(dataset[0], 0)
        self._like = jax.tree.map(lambda leaf: leaf[None], self._first)
        leaves, self._tree = jax.tree.flatten(self._first)
        self.form = (self._tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))

    @classmethod
    def recognises(cls, x: Any) -> bool:
        """Whether `x` has `__len__` and `__getitem__`, and has `__getitems__` or is not iterable."""
        if isinstance(x, Iterator) or is_plain(x) or NumberedSource.recognises(x):
            return False
        is_numbered = hasattr(x, "__getitem__") and hasattr(x, "__len__")
        return is_numbered and (hasattr(x, "__getitems__") or not isinstance(x, Iterable))

    @property
    def like(self) -> Arrays:
        """The first example, as a batch."""
        return self._like

    def _gathered(self, parts: list[RowNumbers], stack: int) -> Iterator[Batch]:
        """Return the batches of full rows, and the partial one, which one thread reads ahead."""

        def read(index: int) -> Batch:
            first = len(parts[0].wanted)
            rows, index = (parts[0], index) if index < first else (parts[1], index - first)
            (padded,) = rows.of(rows.wanted[index : index + 1])
            return dataclasses.replace(self.gather(padded, rows.real), portion=rows.portion)

        return stacked(read_in_threads(read, sum(len(rows.wanted) for rows in parts), _THREADS, _AHEAD), stack)

    def gather(self, padded: np.ndarray, rows: int, stacked: int | None = None) -> Batch:
        """Return a batch of examples by number, of which the first `rows` are real."""
        different = int(np.argmax(padded == padded[-1])) + 1  # the others are repeated
        numbers = [int(number) for number in padded[:different]]
        if hasattr(self._dataset, "__getitems__"):
            with noting(f"examples {numbers[0]}, ... {numbers[-1]} of {self.title}"):
                found = self._dataset.__getitems__(numbers)
        else:
            found = (self._read(number) for number in numbers)  # each is copied before the next one is read
        examples = [self._leaves(example, number) for example, number in zip(found, numbers, strict=True)]
        examples += examples[-1:] * (len(padded) - different)
        gathered = [np.stack(column) for column in zip(*examples, strict=True)]
        return Batch(self._tree.unflatten(gathered), rows, (self.form, padded.shape), self.name)

    def _read(self, number: int) -> PyTree:
        with noting(self._place(number)):
            return self._dataset[number]

    def _place(self, number: int) -> str:
        return f"example {number} of {self.title}"

    def _leaves(self, example: PyTree, number: int) -> list[np.ndarray]:
        checked = self._checked(example, number)
        leaves, tree = jax.tree.flatten(checked)
        if (tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)) != self.form:
            with noting(self._place(number)):
                given = describe(checked)
                fix = "bring all examples to one structure, shape and dtype where they are read"
                expected = describe(self._first)
                raise DataError("an example differs from the first", given=given, expected=expected, fix=fix)
        return [leaf.copy() for leaf in leaves]

    def _checked(self, example: PyTree, number: int) -> Arrays:
        """Return `(x, y, sample_weight)` as arrays without a dim for the examples."""
        with noting(self._place(number)):
            named = zip(("x", "y", "sample_weight"), unpack(example, "the example"), strict=True)
            arrays: PyTree = tuple(
                as_arrays(jax.tree.map(_lifted, _unlisted(value, f"{self.name}{argument}")), f"{self.name}{argument}")
                for argument, value in named
            )
        return jax.tree.map(lambda leaf: leaf[0], arrays)


def _unlisted(value: PyTree, name: str) -> PyTree:
    """Convert lists of numbers in a dict, as in rows of Hugging Face, to arrays."""
    if type(value) is not dict:
        return value
    return {key: list_as_array(item, f"{name}[{key!r}]") for key, item in value.items()}


def list_as_array(item: PyTree, name: str) -> PyTree:
    """Convert a list of numbers, or of such lists, to an array, also in dicts; return anything else unchanged."""
    if not isinstance(item, list):
        return _unlisted(item, name)
    first: PyTree = item
    while isinstance(first, list) and first:
        first = first[0]
    if not isinstance(first, list | bool | int | float | complex):
        return item
    try:
        return np.array(item)
    except ValueError as error:
        summary = f"the lists in {name} must have one length, the same in all examples"
        fix = f"pad or cut {name}, or let the dataset return it as an array"
        raise DataError(summary, given=shorten(item), fix=fix) from error


def _lifted(leaf: PyTree) -> PyTree:
    """Add a first dim of size 1 to a number or an array; return anything else unchanged."""
    host = dense(np.asarray(leaf) if np.isscalar(leaf) else to_host(leaf))
    return host[None] if isinstance(host, np.ndarray) else leaf
