"""Openers: how what holds batches is gone through: by number, again and again, or once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from keras_dist.data.checks import noting
from keras_dist.data.reading import read_in_threads
from keras_dist.data.skipping import skipped
from keras_dist.errors import DataError, shorten

_ENDLESS = 2**40
"""As many batches never end: to grain, `repeat()` has `sys.maxsize` examples, and `batch(n)` a part of that."""


class Opener(Protocol):
    """How to go through the batches of something.

    Attributes:
        title: how errors call it.
        batches: how many batches it has; None where it does not tell.
        is_endless: whether it is known to go on for ever.
        is_once: whether one can go through it once only.
    """

    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def batches(self) -> int | None: ...  # noqa: D102
    @property
    def is_endless(self) -> bool: ...  # noqa: D102
    @property
    def is_once(self) -> bool: ...  # noqa: D102

    def first(self) -> Any:
        """The first batch. It still comes when `open` is called."""
        ...

    def is_over(self) -> bool:
        """Whether it can be gone through once, and was: this asks for the next batch, which still comes."""
        ...

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[Any]:
        """All batches; where the opener knows their numbers, in an order that the key fixes.

        Without the first `skip`, which are gone through, and shown, where they have no numbers, and where the iterator
        cannot go to a `state` that it told of before.
        """
        ...

    def state(self) -> Any:
        """Where the iterator that was opened last is, as JSON; None if it does not tell."""
        ...

    def begin_epoch(self) -> None:
        """An epoch begins."""
        ...

    def end_epoch(self) -> None:
        """An epoch is over."""
        ...


class Numbered:
    """Batches by number: those of a `PyDataset`, ours or Keras's.

    Args:
        dataset: with `num_batches` and `__getitem__`.
    """

    is_once = False

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.title = shorten(dataset)

    @property
    def batches(self) -> int | None:
        """How many there are now: they may be others after an epoch."""
        return self._dataset.num_batches

    @property
    def is_endless(self) -> bool:
        """Whether there is no number of them."""
        return self.batches is None

    def is_over(self) -> bool:
        """False."""
        return False

    def first(self) -> Any:
        """Batch 0."""
        if self.batches == 0:
            raise _empty(self.title)
        return self._dataset[0]

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[Any]:
        """The batches in the order of their numbers, or in that which the key fixes."""
        del state
        count, workers = self.batches, getattr(self._dataset, "workers", 1)
        if count is None:
            return (self._read(number) for number in itertools.count(skip))
        order = np.arange(count)
        if shuffle_key is not None:
            np.random.default_rng(np.random.SeedSequence(shuffle_key)).shuffle(order)
        order = order[skip:]
        if workers <= 1:
            return (self._read(int(number)) for number in order)
        ahead = getattr(self._dataset, "max_queue_size", 10)
        return read_in_threads(lambda index: self._read(int(order[index])), len(order), workers, ahead)

    def _read(self, number: int) -> Any:
        with noting(f"__getitem__({number}) of {self.title}"):
            return self._dataset[number]

    def state(self) -> Any:
        """Nothing: a number is enough."""
        return None

    def begin_epoch(self) -> None:
        """Tell the data set."""
        if hasattr(self._dataset, "on_epoch_begin"):
            self._dataset.on_epoch_begin()

    def end_epoch(self) -> None:
        """Tell the data set."""
        if hasattr(self._dataset, "on_epoch_end"):
            self._dataset.on_epoch_end()


class Again:
    """Batches of something that can be iterated any number of times, in its own order.

    Args:
        iterable: a `tf.data.Dataset`, a torch or grain `DataLoader`, or whatever else has `__iter__`.
    """

    is_once = False

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable
        self._begun: Iterator[Any] | None = None
        self._passing: Any = None
        self.title = shorten(iterable)
        length = _length(iterable)
        self.is_endless = length == float("inf")
        self.batches = None if length is None or self.is_endless else int(length)

    def is_over(self) -> bool:
        """False."""
        return False

    def first(self) -> Any:
        """The first batch of a pass, which is the one that `open` gives next."""
        if self._begun is None:
            self._begun = self._passing = iter(self._iterable)
        passed = self._begun
        for element in passed:
            self._begun = itertools.chain([element], passed)
            return element
        raise _empty(self.title)

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[Any]:
        """A pass."""
        del shuffle_key
        begun, self._begun = self._begun, None
        if begun is not None and state is None:
            return skipped(begun, skip, self.title)
        self._passing = iter(self._iterable)
        if state is None or not hasattr(self._passing, "set_state"):
            return skipped(self._passing, skip, self.title)
        self._passing.set_state(state)
        return self._passing

    def state(self) -> Any:
        """What the iterator tells of itself, as those of grain do."""
        if not hasattr(self._passing, "get_state") or not hasattr(self._passing, "set_state"):
            return None
        state = self._passing.get_state()
        try:
            json.dumps(state)
        except TypeError:
            return None  # it is no JSON
        return state

    def begin_epoch(self) -> None:
        """Nothing to tell."""

    def end_epoch(self) -> None:
        """Nothing to tell."""


class Once:
    """The batches of a generator, or another iterator, which are gone when they were given.

    Args:
        iterator: never asked for more than is used.
    """

    batches = None
    is_endless = False
    is_once = True

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = _LookedAt(iterator)
        self.title = shorten(iterator)

    def is_over(self) -> bool:
        """Whether no batch is left."""
        return not self._iterator.ahead()

    def first(self) -> Any:
        """The next batch, which comes again."""
        for element in self._iterator.ahead():
            return element
        raise _empty(self.title, "a generator can be used once: make a new one, or pass something with __iter__")

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[Any]:
        """What is left."""
        del shuffle_key, state
        return skipped(self._iterator, skip, self.title)

    def state(self) -> Any:
        """Nothing: another iterator could not go there."""
        return None

    def begin_epoch(self) -> None:
        """Nothing to tell."""

    def end_epoch(self) -> None:
        """Nothing to tell."""


class _LookedAt:
    """An iterator whose next element may be looked at."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._ahead = iterator, list[Any]()

    def __iter__(self) -> _LookedAt:
        return self

    def __next__(self) -> Any:
        return self._ahead.pop() if self._ahead else next(self._iterator)

    def ahead(self) -> list[Any]:
        """The next element, which still comes; nothing if there is none."""
        if not self._ahead:
            self._ahead += itertools.islice(self._iterator, 1)
        return self._ahead


def _length(iterable: Any) -> float | None:
    """How many batches something tells to have, if it does."""
    if hasattr(iterable, "cardinality"):  # of `tf.data`, for which `len` raises: -1 for endless, -2 for unknown
        cardinality = int(iterable.cardinality())
        return {-1: float("inf"), -2: None}.get(cardinality, cardinality)
    try:
        length = len(iterable)
    except (TypeError, NotImplementedError):
        return None
    return float("inf") if length >= _ENDLESS else length


def _empty(title: str, fix: str = "check the path or filter that made it") -> DataError:
    return DataError("there is no batch", given=title, expected="at least one batch", fix=fix)
