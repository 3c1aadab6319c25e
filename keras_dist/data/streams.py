"""`StreamSource`: batches of datasets that yield batches, checked, copied and padded.

Batches of a dataset are requested in the training thread when their step is due: dispatch is asynchronous, the next
batch is made while the devices compute, and a generator is never ahead of its training. Threads (grain) read only
`PyDataset(workers=n)` and examples by number.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Self, SupportsInt

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

from keras_dist._support.types import PyTree
from keras_dist.data.batch import Batch, unpack
from keras_dist.data.conversion import (
    Arrays,
    all_as_arrays,
    as_arrays,
    common_length,
    dense,
    describe,
    is_plain,
    noting,
    weights_of_classes,
)
from keras_dist.data.cursor import set_state
from keras_dist.data.source import DataSource, order_of, register_source
from keras_dist.distribution.process_rows import HostSlice
from keras_dist.errors import DataError, shorten
from keras_dist.jobs.job import is_chief

_END: Any = object()
_CHECK_PATH = "check the path or filter that made it"

_ENDLESS = 2**40
"""Endless number of batches: in grain, `repeat()` has `sys.maxsize` examples, and `batch(n)` a fraction of that."""


class StreamSource(DataSource):
    """Base class of sources that yield batches of any length, with fixed structure, dtypes and numbers of dims.

    Subclasses define `first` and `open`, and override other attributes and methods as needed.

    Args:
        dataset: the dataset that yields the batches.
        name: prefix of the data's name in error messages, such as `"validation "`.

    Attributes:
        num_batches: number of batches; None if unknown.
        is_endless: whether it is known that the batches never end.
        is_once: whether the batches can be iterated only once.
    """

    num_batches: int | None = None
    is_endless: bool = False
    is_once: bool = False

    def __init__(self, dataset: Any, name: str = "") -> None:
        self.name, self._dataset = name, dataset
        self.title = f"{name}{shorten(dataset)}"
        self._class_weight: Mapping[int, float] | None = None

    def first(self) -> PyTree:
        """Return the first batch, which `open` yields again."""
        raise NotImplementedError

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[PyTree]:
        """Iterate over one pass of batches.

        Args:
            shuffle_key: seeds the order of batches that have indices; None for the order of the dataset.
            skip: number of batches to skip at the beginning. Batches without indices are read and dropped, with a
                progress bar, unless the iterator can be set to `state`.
            state: result of `state()` after these batches; None if the iterator has no state.
        """
        raise NotImplementedError

    def state(self) -> Any:
        """Return the state of the iterator that was opened last, as JSON; None if it has none."""

    def begin_epoch(self) -> None:
        """Called before each epoch."""

    def end_epoch(self) -> None:
        """Called after each epoch."""

    @functools.cached_property
    def like(self) -> Arrays:
        """`(x, y, sample_weight)` of the first batch, which is read when this is first used.

        Raises:
            DataError: the data have no batch, or the first one is invalid.
        """
        with noting(self._place(0)):
            return self._arrays(self.first())

    def weighted(self, class_weight: Mapping[int, float]) -> Self:
        """Return the same batches with the weights of their classes as sample weights."""
        same = copy.copy(self)
        same.__dict__.pop("like", None)
        same._class_weight = class_weight
        return same

    def example(self, multiple_of: int, share: HostSlice | None = None) -> Batch:
        """Return the first batch, for its structure."""
        return self._padded(self.like, multiple_of, share)

    def batches(
        self,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        skip: int = 0,
        state: Any = None,
        share: HostSlice | None = None,
    ) -> Iterator[Batch]:
        """Yield all batches except the first `skip`, padded to a multiple of `multiple_of`, with the rows of `share`.

        An iterator that can be set to `state` does not read the skipped batches.

        Raises:
            DataError: a batch is invalid, or its form differs from the first batch.
        """
        like = self.like
        elements = self.open(shuffle_key, skip, state)
        for number in itertools.count(skip):
            with noting(self._place(number)):
                element = next(elements, _END)
                if element is _END:
                    return
                arrays = self._arrays(element)
                _check_alike(arrays, like)
                if share is not None and share.see is not None:
                    share.see(arrays)
                batch = self._padded(arrays, multiple_of, share)
            yield batch

    def _place(self, number: int) -> str:
        return f"batch {number} of {self.title}"

    def _arrays(self, element: PyTree) -> Arrays:
        """Return `(x, y, sample_weight)` as numpy arrays, which may share memory with the source."""
        element = element if self.keys is None else self.keys.parts(element, "the batch")
        x, y, sample_weight = unpack(element, "the batch")
        if self.prepare is not None:
            x = self.prepare(x)
        if self._class_weight is not None:
            sample_weight = weights_of_classes(as_arrays(y, f"{self.name}y"), self._class_weight, sample_weight)
        arrays = all_as_arrays((x, y, sample_weight), self.name)
        arrays = jax.tree.map(dense, arrays)
        common_length(arrays, self.name, "batch")
        return arrays

    def _padded(self, arrays: Arrays, multiple_of: int, share: HostSlice | None) -> Batch:
        leaves, tree = jax.tree.flatten(arrays)
        rows = len(leaves[0])
        padding = -rows % multiple_of
        form: Hashable = (tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves), padding)
        if share is not None:
            portion = share.portion(rows)
            taken = [leaf.take(portion.numbers, axis=0) for leaf in leaves]
            return Batch(tree.unflatten(taken), portion.rows, form, self.name, portion=portion)
        return Batch(tree.unflatten([_copied(leaf, padding) for leaf in leaves]), rows, form, self.name)


@register_source
class IterableSource(StreamSource):
    """Batches of an object with `__iter__`, as a `tf.data.Dataset`, or a torch or grain `DataLoader`."""

    _way_of_batches = _CHECK_PATH

    def __init__(self, dataset: Iterable[PyTree], name: str = "") -> None:
        super().__init__(dataset, name)
        self._begun: Any = None
        self._passing: Any = None
        length = None if self.is_once else _length(dataset)
        self.is_endless = length == float("inf")
        self.num_batches = None if length is None or self.is_endless else int(length)

    @classmethod
    def recognises(cls, x: Any) -> bool:
        """Whether `x` has `__iter__`, and is neither a container of arrays nor text."""
        return isinstance(x, Iterable) and not is_plain(x)

    def first(self) -> PyTree:
        """Return the first batch of a pass, which `open` yields next."""
        if self._begun is None:
            self._begun = self._passing = iter(self._dataset)
        passed = self._begun
        for element in passed:
            self._begun = itertools.chain([element], passed)
            return element
        raise _empty(self.title, self._way_of_batches)

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[PyTree]:
        """Iterate over one pass."""
        begun, self._begun = self._begun, None
        if begun is not None and state is None:
            return skipped(begun, skip, self.title)
        self._passing = iter(self._dataset)
        if state is None or not hasattr(self._passing, "set_state"):
            return skipped(self._passing, skip, self.title)
        set_state(self._passing, state, self.title)
        return self._passing

    def state(self) -> Any:
        """Return the state of an iterator with `get_state` and `set_state`, as grain's."""
        if not hasattr(self._passing, "get_state") or not hasattr(self._passing, "set_state"):
            return None
        state = self._passing.get_state()
        try:
            json.dumps(state)
        except TypeError:
            return None
        return state


@register_source
class IteratorSource(IterableSource):
    """Batches of a generator or another iterator. No batch is read before it is needed."""

    is_once = True
    _way_of_batches = "a generator can be used once: make a new one, or pass something with __iter__"

    @classmethod
    def recognises(cls, x: Any) -> bool:
        """Whether `x` is an iterator."""
        return isinstance(x, Iterator) and not is_plain(x)

    def state(self) -> None:
        """Return None: what an iterator has yielded is gone."""


class KeptSource(StreamSource):
    """The first `count` batches of an iterator, kept in memory: each pass yields the same."""

    def __init__(self, source: StreamSource, count: int) -> None:
        super().__init__(source._dataset, source.name)
        self.title, self._source, self._count = source.title, source, count
        self._kept: list[Batch] = []
        self._left: Iterator[Batch] | None = None

    @property
    def like(self) -> Arrays:
        """`(x, y, sample_weight)` of the first batch."""
        return self._source.like

    def batches(
        self,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        skip: int = 0,
        state: Any = None,
        share: HostSlice | None = None,
    ) -> Iterator[Batch]:
        """Yield all batches except the first `skip`. Each is read, padded and reduced when it is first needed."""
        if self._left is None:
            self._left = self._source.batches(multiple_of, share=share)
        for number in range(self._count):
            if number == len(self._kept):
                self._kept += itertools.islice(self._left, 1)
            if number == len(self._kept):
                return
            if number >= skip:
                yield self._kept[number]


@register_source
class NumberedSource(StreamSource):
    """Batches by index, from an object with `num_batches` and `__getitem__` such as a `PyDataset`."""

    @classmethod
    def recognises(cls, x: Any) -> bool:
        """Whether `x` has `num_batches` and `__getitem__`."""
        is_numbered = hasattr(x, "num_batches") and not callable(x.num_batches) and hasattr(x, "__getitem__")
        return is_numbered and not is_plain(x)

    @property
    def num_batches(self) -> int | None:
        """Number of batches, which may change after an epoch."""
        return self._dataset.num_batches

    @property
    def is_endless(self) -> bool:
        """Whether the number of batches is unknown."""
        return self.num_batches is None

    def first(self) -> PyTree:
        """Return batch 0."""
        if self.num_batches == 0:
            raise _empty(self.title)
        return self._dataset[0]

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[PyTree]:
        """Iterate over the batches by number, or in the order of the key."""
        count, workers = self.num_batches, getattr(self._dataset, "workers", 1)
        if count is None:
            return (self._read(number) for number in itertools.count(skip))
        order = order_of(count, shuffle_key)[skip:]
        if workers <= 1:
            return (self._read(int(number)) for number in order)
        ahead = getattr(self._dataset, "max_queue_size", 10)
        return read_in_threads(lambda index: self._read(int(order[index])), len(order), workers, ahead)

    def begin_epoch(self) -> None:
        """Call the hook of the dataset."""
        if hasattr(self._dataset, "on_epoch_begin"):
            self._dataset.on_epoch_begin()

    def end_epoch(self) -> None:
        """Call the hook of the dataset."""
        if hasattr(self._dataset, "on_epoch_end"):
            self._dataset.on_epoch_end()

    def _read(self, number: int) -> PyTree:
        with noting(f"__getitem__({number}) of {self.title}"):
            return self._dataset[number]


def _length(iterable: Any) -> float | None:
    """Return the number of batches of an iterable; None if unknown."""
    if hasattr(iterable, "cardinality"):  # of `tf.data`, for which `len` raises: -1 for endless, -2 for unknown
        cardinality = int(iterable.cardinality())
        return {-1: float("inf"), -2: None}.get(cardinality, cardinality)
    try:
        length = len(iterable)
    except (TypeError, NotImplementedError):
        return None
    return float("inf") if length >= _ENDLESS else length


def _empty(title: str, fix: str = _CHECK_PATH) -> DataError:
    return DataError("the data have no batch", given=title, fix=fix)


def skipped(batches: Iterator[PyTree], count: int, title: str) -> Iterator[PyTree]:
    """Skip the first `count` batches, with a progress bar."""
    found = sum(1 for _ in shown_skipping(itertools.islice(batches, count), count, title))
    if found < count:
        fix = "resume with the same data, or begin a new run"
        raise DataError("the data end before the saved position", given=f"{found} of {count} of {title}", fix=fix)
    return batches


def shown_skipping(batches: Iterable[PyTree], count: int, title: str) -> Iterable[PyTree]:
    """Yield the batches to skip, with a progress bar on standard error in the first process."""
    if not count or not is_chief():
        return batches
    console = Console(file=sys.stderr, soft_wrap=True)
    console.print(f"replaying {count} finished batches of {title}: this dataset cannot seek", markup=False)
    return track(batches, "skipping", total=count, console=console, transient=True)


class _Reads:
    """A data source for grain."""

    def __init__(self, read: Callable[[int], PyTree], count: int) -> None:
        self._read, self._count = read, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsInt) -> tuple[PyTree]:
        try:
            return (self._read(int(index)),)  # a tuple, since grain skips elements that are None
        except StopIteration as error:  # grain would end
            raise RuntimeError(f"reading element {index} raised StopIteration") from error


def read_in_threads(read: Callable[[int], PyTree], count: int, threads: int, ahead: int) -> Iterator[PyTree]:
    """Yield `read(0)`, `read(1)`, ... `read(count - 1)` in order; threads read `ahead`. Errors are raised in order."""
    import grain  # takes 0.25 s  # noqa: PLC0415

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, ahead))
    return (element for (element,) in grain.MapDataset.source(_Reads(read, count)).to_iter_dataset(options))


def _check_alike(arrays: Arrays, first: Arrays) -> None:
    if _kind(arrays) != _kind(first):
        expected = f"{describe(first)}, with any number of rows"
        fix = "bring all batches to one structure, dtype and number of dims where they are made"
        raise DataError("a batch differs from the first", given=describe(arrays), expected=expected, fix=fix)


def _copied(leaf: np.ndarray, padding: int) -> np.ndarray:
    """Copy and pad the rows, since a source may refill its buffer while a step reads it."""
    return np.concatenate([leaf, np.repeat(leaf[-1:], padding, axis=0)]) if padding else np.array(leaf)


def _kind(arrays: PyTree) -> Hashable:
    leaves, tree = jax.tree.flatten(arrays)
    return tree, tuple((leaf.ndim, leaf.dtype) for leaf in leaves)
