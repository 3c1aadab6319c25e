"""`StreamSource`: batches that something else makes, checked, copied and padded, and otherwise as they come."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import numpy as np

from keras_dist.data.batch import Batch
from keras_dist.data.checks import as_arrays, check_targets, common_length, describe, noting
from keras_dist.data.elements import unpack
from keras_dist.data.hosts import SparseRows
from keras_dist.data.openers import Opener
from keras_dist.distribution.process_rows import Share
from keras_dist.errors import DataError

_END: Any = object()


class StreamSource:
    """Batches of an `Opener`, of any lengths, but of one structure, and of the same dtypes and numbers of dims.

    Args:
        opener: goes through the batches.
        name: how errors call what they hold, such as `"validation "`.
        weigh: gives the weights of the rows of a batch for its targets; None to leave weights as they come.
    """

    def __init__(self, opener: Opener, name: str = "", weigh: Callable[[Any], Any] | None = None) -> None:
        self.name = name
        self._opener, self._weigh = opener, weigh

    @property
    def title(self) -> str:
        """How errors call it."""
        return f"{self.name}{self._opener.title}"

    @property
    def passes(self) -> Opener:
        """What goes through the batches."""
        return self._opener

    @functools.cached_property
    def like(self) -> tuple[Any, Any, Any]:
        """`(x, y, sample_weight)` of the first batch, which is asked for now.

        Raises:
            DataError: there is no batch, or the first one cannot be used.
        """
        with noting(self._place(0)):
            return self._arrays(self._opener.first())

    @property
    def x(self) -> Any:
        """The inputs in `like`."""
        return self.like[0]

    def is_over(self) -> bool:
        """Whether it can be gone through once, and was: this asks for the next batch, which still comes."""
        with noting(self._place(0)):
            return self._opener.is_over()

    def weighted(self, weigh: Callable[[Any], Any]) -> StreamSource:
        """The same batches, weighted by their targets."""
        return StreamSource(self._opener, self.name, weigh)

    def check_targets(self) -> None:
        """Nothing, if there are targets.

        Raises:
            DataError: there are none.
        """
        check_targets(self.like, self.name, "let the data set give (x, y)")

    def example(self, multiple_of: int, share: Share | None = None) -> Batch:
        """The first batch, for its structure."""
        return self._padded(self.like, multiple_of, share)

    def batches(
        self,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        skip: int = 0,
        state: Any = None,
        share: Share | None = None,
    ) -> Iterator[Batch]:
        """All batches, padded to a multiple of this many rows, without the first `skip`; of each what a share says.

        What can go to a `state` that it told of, goes there instead of through those.

        Raises:
            DataError: a batch cannot be used, or is of another form than the first one.
        """
        like = self.like
        elements = self._opener.open(shuffle_key, skip, state)
        for number in itertools.count(skip):
            with noting(self._place(number)):
                element = next(elements, _END)
                if element is _END:
                    return
                arrays = self._arrays(element)
                _check_alike(arrays, like)
                batch = self._padded(arrays, multiple_of, share)
            yield batch

    def _place(self, number: int) -> str:
        return f"batch {number} of {self.title}"

    def _arrays(self, element: Any) -> tuple[Any, Any, Any]:
        """`(x, y, sample_weight)` as numpy arrays, maybe of the memory of the source."""
        x, y, sample_weight = unpack(element, "the batch")
        if self._weigh is not None:
            if sample_weight is not None:
                raise DataError(
                    "`class_weight` and `sample_weight` cannot be given at the same time",
                    given="class_weight, and a batch with sample_weight",
                    expected="one of them",
                    fix="multiply the weights in the source by the weight of each example's class",
                )
            sample_weight = self._weigh(as_arrays(y, f"{self.name}y"))
        parts = zip(("x", "y", "sample_weight"), (x, y, sample_weight), strict=True)
        arrays: Any = tuple(as_arrays(value, f"{self.name}{argument}") for argument, value in parts)
        arrays = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, SparseRows) else leaf, arrays)
        common_length(arrays, self.name, "batch")
        return arrays

    def _padded(self, arrays: tuple[Any, Any, Any], multiple_of: int, share: Share | None) -> Batch:
        leaves, tree = jax.tree.flatten(arrays)
        rows = len(leaves[0])
        padding = -rows % multiple_of
        form: Hashable = (tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves), padding)
        if share is not None:
            portion = share.portion(rows)
            taken = [leaf.take(portion.numbers, axis=0) for leaf in leaves]
            return Batch(tree.unflatten(taken), portion.rows, form, self.name, portion=portion)
        return Batch(tree.unflatten([_copied(leaf, padding) for leaf in leaves]), rows, form, self.name)


def stacked(batches: Iterator[Batch], count: int) -> Iterator[Batch]:
    """Batches of one form and length that follow each other in stacks of `count`; what is left over one by one."""
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


def _check_alike(arrays: tuple[Any, Any, Any], first: tuple[Any, Any, Any]) -> None:
    if _kind(arrays) != _kind(first):
        raise DataError(
            "a batch is another than the first",
            given=describe(arrays),
            expected=f"{describe(first)}, as in the first batch, with any number of rows",
            fix="bring all batches to one structure, dtype and number of dims where they are made",
        )


def _copied(leaf: np.ndarray, padding: int) -> np.ndarray:
    """The rows in memory of their own, the last one repeated: a source may refill its buffer while a step reads it."""
    return np.concatenate([leaf, np.repeat(leaf[-1:], padding, axis=0)]) if padding else np.array(leaf)


def _kind(arrays: Any) -> Hashable:
    leaves, tree = jax.tree.flatten(arrays)
    return tree, tuple((leaf.ndim, leaf.dtype) for leaf in leaves)
