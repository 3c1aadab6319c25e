"""`DataSource`: base class of readers of one kind of data. `RowSource`: examples with random access."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree
from keras_dist.data.batch import Batch, BatchKeys
from keras_dist.data.conversion import Arrays, check_targets
from keras_dist.distribution.process_rows import BatchSlice, HostSlice
from keras_dist.errors import DataError


class DataSource:
    """Base class of readers of one kind of data: `RowSource` and `StreamSource`.

    A subclass with `@register_source` reads the data that its `recognises` accepts; its arguments are `x` and `name`.
    """

    prepare: Callable[[PyTree], PyTree] | None = None  # converts the inputs of a batch to numbers
    keys: BatchKeys | None = None  # in batches that are dicts; None if dicts are inputs
    way_of_targets = "let the dataset yield (x, y)"  # in errors
    name: str  # prefix of `x`, `y` and `sample_weight` in errors, such as "validation "
    title: str  # name of the dataset in errors

    @classmethod
    def recognises(cls, x: Any) -> bool:
        """Return whether this class reads `x`. Must not import a library for it."""
        return False

    @property
    def like(self) -> Arrays:
        """`(x, y, sample_weight)` with the structure, dtypes and dims of all batches, and any number of rows."""
        raise NotImplementedError

    @property
    def x(self) -> PyTree:
        """The inputs in `like`."""
        return self.like[0]

    @property
    def resumes_with(self) -> dict[str, int | None]:
        """Properties of the dataset that must be equal to resume within an epoch, such as the weights of a mixture."""
        return dict(getattr(getattr(self, "_dataset", None), "resumes_with", {}))

    def check_targets(self) -> None:
        """Raise a `DataError` if targets are missing."""
        check_targets(self.like, self.name, self.way_of_targets)


S = TypeVar("S", bound=type[DataSource])

registered: list[type[DataSource]] = []  # classes of sources; the first that recognises the data is used


def register_source(source: S) -> S:
    """Class decorator: `fit`, `evaluate`, `predict` and `DataLoader` read data that the class `recognises`.

    Classes that are registered later take precedence.

    Raises:
        DataError: the argument is not a class, or has no `recognises`.
    """
    if not isinstance(source, type) or not callable(getattr(source, "recognises", None)):  # pyright: ignore[reportUnnecessaryIsInstance]
        fix = "derive it from ArraySource, LookupSource or StreamSource, and define recognises(cls, x)"
        raise argument_error("source", source, "a class with a class method recognises(x)", fix=fix, error=DataError)
    registered.insert(0, source)
    return source


@dataclasses.dataclass(frozen=True)
class RowNumbers:
    """Row numbers of batches of equal length; arrays of them exist only for batches passed to `of`."""

    order: range | np.ndarray  # numbers of the real rows of all batches
    size: int  # rows of each batch in `order`
    multiple_of: int  # divisor of the rows of padded batches
    wanted: range  # indices of batches
    portion: BatchSlice | None = None  # the rows of the global batches; None for all

    @property
    def real(self) -> int:
        """Number of real rows in each batch."""
        return self.size if self.portion is None else self.portion.rows

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.order) // self.size

    def of(self, batches: range) -> np.ndarray:
        """Return the row numbers of successive batches (batches, padded rows); the last real row is repeated."""
        part = self.order[batches.start * self.size : batches.stop * self.size]
        rows = np.arange(part.start, part.stop) if isinstance(part, range) else part
        rows = rows.reshape(-1, self.size)
        if self.portion is not None:
            return rows[:, self.portion.numbers]
        padding = -self.size % self.multiple_of
        return np.concatenate([rows, np.repeat(rows[:, -1:], padding, axis=1)], axis=1) if padding else rows

    @property
    def padded(self) -> np.ndarray:
        """Row numbers of all batches."""
        return self.of(range(len(self)))


def _with_portion(batch: Batch, portion: BatchSlice | None) -> Batch:
    return batch if portion is None else dataclasses.replace(batch, portion=portion)  # a copy takes 5 us of each step


class RowSource(DataSource):
    """Base class of sources with random access to examples.

    Attributes:
        length: number of examples.
        form: equal for sources whose arrays differ only in values and number of rows.
    """

    length: int
    form: Hashable

    def gather(self, padded: np.ndarray, rows: int, stacked: int | None = None) -> Batch:
        """Return rows by index as a batch or a stack of batches, each with `rows` real rows first."""
        raise NotImplementedError

    def batches(
        self,
        batch_size: int,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        stack: int = 1,
        span: range | None = None,
        share: HostSlice | None = None,
    ) -> Iterator[Batch]:
        """Return the examples in batches, each exactly once.

        Args:
            batch_size: number of rows in all batches but the last.
            multiple_of: batches are padded to a multiple of this number of rows.
            shuffle_key: integers that seed a permutation of the examples; None for no shuffling.
            stack: number of full batches per stack; the remaining batches are yielded singly.
            span: indices of the batches to yield; None for all.
            share: the rows of each batch that this process loads; None for all.
        """
        return self._gathered(self.row_numbers(batch_size, multiple_of, shuffle_key, span, share), stack)

    def _gathered(self, parts: list[RowNumbers], stack: int) -> Iterator[Batch]:
        """Yield the batches of these rows, as stacks where `stack` full ones are left."""
        for rows in parts:
            stacks = len(rows.wanted) // stack if stack > 1 else 0
            for index in range(stacks):
                stacked = self.gather(rows.of(rows.wanted[index * stack : (index + 1) * stack]), rows.real, stack)
                yield _with_portion(stacked, rows.portion)
            for index in range(stacks * stack, len(rows.wanted)):
                (padded,) = rows.of(rows.wanted[index : index + 1])
                yield _with_portion(self.gather(padded, rows.real), rows.portion)

    def row_numbers(
        self,
        batch_size: int,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        span: range | None = None,
        share: HostSlice | None = None,
    ) -> list[RowNumbers]:
        """Return the rows of all full batches, then of the partial one; arguments as for `batches`."""
        span = range(self.length) if span is None else span
        batch_size = min(batch_size, self.length)
        order = order_of(self.length, shuffle_key)
        full = self.length - self.length % batch_size
        found, before = [], 0
        for part, size in ((order[:full], batch_size), (order[full:], self.length - full)):
            count = len(part) // size if size else 0
            wanted = range(count)[max(span.start - before, 0) : max(span.stop - before, 0)]
            if wanted:
                portion = None if share is None else share.portion(size)
                found.append(RowNumbers(part, size, multiple_of, wanted, portion))
            before += count
        return found

    def whole(self, multiple_of: int, share: HostSlice | None = None) -> Batch:
        """Return all examples as one batch."""
        return next(self.batches(self.length, multiple_of, share=share))


def order_of(count: int, shuffle_key: tuple[int, ...] | None) -> range | np.ndarray:
    """Return a permutation of `range(count)`, seeded by the key; for None the range itself."""
    if shuffle_key is None:
        return range(count)
    order = np.arange(count)
    np.random.default_rng(np.random.SeedSequence(shuffle_key)).shuffle(order)
    return order
