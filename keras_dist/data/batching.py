"""`Batching` and `Streaming`: the batches of each epoch."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax

from keras_dist._support.located_warnings import warn
from keras_dist.data.batch import Batch, stacked
from keras_dist.data.cursor import Cursor, check_same
from keras_dist.data.source import RowSource
from keras_dist.data.streams import KeptSource, StreamSource, shown_skipping
from keras_dist.distribution.process_rows import HostSlice
from keras_dist.errors import DataError

Epochs = Iterator[tuple[int, Iterator[Batch]]]
"""Numbers of the epochs with their batches, which must be consumed before the next epoch."""


@dataclasses.dataclass(frozen=True)
class Span:
    """The batches of an epoch."""

    began: int  # epoch in which this pass over the examples began; examples are shuffled once per pass
    batches: range  # indices in the pass


@dataclasses.dataclass(frozen=True, eq=False)
class Batching:
    """Examples split into batches of equal size."""

    source: RowSource
    batch_size: int
    steps: int | None = None  # per epoch; None for all batches
    drop_remainder: bool = False  # whether to drop a partial last batch

    def __post_init__(self) -> None:
        if self.drop_remainder and self.source.length < self.batch_size:
            given = f"{self.source.length} rows, batch_size={self.batch_size}"
            fix = "a smaller batch_size, or drop_remainder=False"
            raise DataError("`drop_remainder` leaves no batch", given=given, fix=fix)

    @property
    def batches(self) -> int:
        """Number of batches."""
        full, left = divmod(self.source.length, self.batch_size)
        return full + (left > 0 and not self.drop_remainder)

    @property
    def steps_of_epoch(self) -> int:
        """Number of batches of a full epoch."""
        return self.steps or self.batches

    @property
    def sizes(self) -> dict[str, int | None]:
        """Counts by name that must be equal in all processes."""
        return {"rows": self.source.length, "rows of a batch": self.batch_size, "steps": self.steps_of_epoch}

    def spans(self, epochs: range) -> Iterator[tuple[int, Span]]:
        """Yield each epoch with its batches. An epoch continues where the previous one stopped.

        A pass ends with an epoch, which may have fewer than `steps` batches. As in Keras's `EpochIterator`.
        """
        began, start = epochs.start, 0
        for epoch in epochs:
            stop = min(start + self.steps_of_epoch, self.batches)
            if stop - start < self.steps_of_epoch:
                self._warn_of_end(stop - start)
            yield epoch, Span(began, range(start, stop))
            began, start = (began, stop) if stop < self.batches else (epoch + 1, 0)

    def spans_from(self, epochs: range, start: Cursor | None) -> Iterator[tuple[int, Span]]:
        """Yield each epoch with its batches, beginning at `start`; None for all."""
        start = start or Cursor(epochs.start)
        for epoch, span in self.spans(epochs):
            if epoch >= start.epoch:
                left = span.batches[start.batch :] if epoch == start.epoch else span.batches
                yield epoch, dataclasses.replace(span, batches=left)

    def epochs(
        self,
        numbers: range,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        stack: int = 1,
        start: Cursor | None = None,
        share: HostSlice | None = None,
    ) -> Epochs:
        """Yield the batches of each epoch from `start` on; other arguments as in `RowSource.batches`."""
        for epoch, span in self.spans_from(numbers, start):
            key = pass_key(shuffle_key, span.began)
            yield epoch, self.source.batches(self.batch_size, multiple_of, key, stack, span.batches, share)

    def state(self) -> dict[str, int | None] | None:
        """Return properties that must be equal to resume; the index of a batch is the position."""
        return self.source.resumes_with or None

    def check_position(self, start: Cursor) -> None:
        """Check that these batches have a position; raises `DataError`."""
        batch = min(start.batch, self.batches)
        place = {"finished batches": batch, "finished rows": min(batch * self.batch_size, self.source.length)}
        check_same(place, {"finished batches": start.batch, "finished rows": start.rows})
        check_same(self.source.resumes_with if start.batch else {}, start.source)

    def check_passes(self, count: int) -> None:
        """Do nothing, since examples can be read any number of times."""

    def example(self, multiple_of: int, share: HostSlice | None = None) -> Batch:
        """Return the first batch in the order of the examples, for its structure."""
        return next(self.source.batches(self.batch_size, multiple_of, span=range(1), share=share))

    def _warn_of_end(self, left: int) -> None:
        given = f"{self.source.length} rows in {self.batches} batches of {self.batch_size}"
        _warn_of_end(self.steps, left, given, "fewer steps, or a smaller batch_size")


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming:
    """Batches of a dataset that yields batches."""

    source: StreamSource
    steps: int | None = None  # per epoch; None for all batches
    steps_argument: str = "steps"  # in errors

    def __post_init__(self) -> None:
        if self.steps is None and self.source.is_endless:
            raise self._needs_steps("batches that never end")

    @property
    def steps_of_epoch(self) -> int | None:
        """Number of batches of a full epoch; None if unknown."""
        return self.steps or self.source.num_batches

    @property
    def sizes(self) -> dict[str, int | None]:
        """Counts by name that must be equal in all processes."""
        rows = len(jax.tree.leaves(self.source.like)[0])
        return {"rows of the first batch": rows, "steps": self.steps_of_epoch}

    def epochs(
        self,
        numbers: range,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        stack: int = 1,
        start: Cursor | None = None,
        share: HostSlice | None = None,
    ) -> Epochs:
        """Yield the batches of each epoch. With `steps`, an epoch continues where the previous one stopped.

        Stops early when an iterator is exhausted. No batch is read before its epoch begins.
        """
        source = self.source
        start = start or Cursor(numbers.start)
        if start.epoch >= numbers.stop:
            return
        batches: Iterator[Batch] | None = None
        for epoch in numbers:
            is_done = epoch < start.epoch
            if is_done and self.steps is None:  # a separate pass, which can be skipped
                source.begin_epoch()
                source.end_epoch()
                continue
            begun = next(batches, None) if batches is not None and source.is_once else None
            if begun is None and batches is not None and source.is_once:
                if self.steps is None:
                    ends = f"training ends after {epoch - numbers.start} of {len(numbers)} epochs"
                    fix = "an object with __iter__ in place of an iterator, or steps_per_epoch=..."
                    _warn(ends, source.title, "batches that can be iterated in every epoch", fix)
                else:
                    _warn_of_end(self.steps, 0, self.source.title, "an iterator with more batches, or fewer epochs")
                return
            done, skip, state = 0, 0, None
            if epoch == start.epoch and self.steps is None:
                skip, state = start.batch, start.source
            elif epoch <= start.epoch and self.steps is not None:
                done = self.steps if is_done else start.batch
            key = pass_key(shuffle_key, epoch)
            new = functools.partial(self.source.batches, multiple_of, key, skip, state, share)
            taken = _Taken(begun, batches, new, self.steps, self.source.title, skip)
            left = self._with_hooks(iter(taken), done, stack)
            if is_done:
                collections.deque(left, maxlen=0)
            else:
                yield epoch, left
            batches = taken.batches
            if taken.is_over:
                if self.steps is not None and taken.count < self.steps:
                    _warn_of_end(self.steps, taken.count, self.source.title, "fewer steps")
                batches = None if not source.is_once else iter(())

    def state(self) -> Any:
        """Return the state of the iterator of the batches, as JSON; None if there is none."""
        return self.source.state()

    def example(self, multiple_of: int, share: HostSlice | None = None) -> Batch:
        """Return the first batch, for its structure."""
        return self.source.example(multiple_of, share)

    def _with_hooks(self, batches: Iterator[Batch], done: int, stack: int) -> Iterator[Batch]:
        """Yield the remaining batches of an epoch between the hooks `begin_epoch` and `end_epoch` of the source."""
        self.source.begin_epoch()
        for _ in shown_skipping(itertools.islice(batches, done), done, self.source.title):
            pass
        yield from stacked(batches, stack)
        self.source.end_epoch()

    def check_passes(self, count: int) -> None:
        """Raise if the batches cannot be iterated `count` times. Reads no batch."""
        if self.source.is_once and self.steps is None and count > 1:
            fix = "; for all batches each time a PyDataset, or an object whose __iter__ begins anew"
            raise self._needs_steps(f"an iterator, which can be used once, for {count} passes", fix)

    def _needs_steps(self, given: str, otherwise: str = "") -> DataError:
        summary = f"`{self.steps_argument}` is missing: the number of batches of an epoch"
        fix = f"for example {self.steps_argument}=100{otherwise}"
        return DataError(summary, given=f"{self.source.title}: {given}", fix=fix)


@dataclasses.dataclass
class _Taken:
    """The batches of one epoch, counted."""

    begun: Batch | None  # first batch, if it was read to find out whether there is one
    batches: Iterator[Batch] | None  # rest of a pass, if one has begun
    new: Callable[[], Iterator[Batch]]  # begins a pass
    steps: int | None
    title: str
    count: int  # batches taken, also in another run
    is_over: bool = False  # whether the pass has ended

    def __iter__(self) -> Iterator[Batch]:
        while self.steps is None or self.count < self.steps:
            batch, self.begun = self.begun or self._next(), None
            if batch is None:
                self.is_over = True
                if self.count == 0:
                    fix = "a new generator each time, an __iter__ that begins anew, or fewer steps or epochs"
                    raise DataError("the data have no batch left", given=self.title, fix=fix)
                return
            self.count += 1
            yield batch

    def _next(self) -> Batch | None:
        batch = next(self.batches, None) if self.batches is not None else None
        if batch is None and (self.batches is None or self.count == 0):  # earlier epochs have taken all
            self.batches = self.new()
            batch = next(self.batches, None)
        return batch


def pass_key(shuffle_key: tuple[int, ...] | None, epoch: int) -> tuple[int, ...] | None:
    """Return the shuffle key of a pass over the examples that begins in this epoch."""
    return None if shuffle_key is None else (*shuffle_key, epoch)


def _warn_of_end(steps: int | None, left: int, given: str, fix: str) -> None:
    _warn(f"an epoch of {steps} steps ends after {left}", given, f"a multiple of {steps} batches", fix)


def _warn(ends: str, given: str, expected: str, fix: str) -> None:
    text = f"Your input ran out of data: {ends}\n  given:    {given}\n  expected: {expected}\n  fix:      {fix}"
    warn(text)


@dataclasses.dataclass(frozen=True, eq=False)
class Validation:
    """The validation data, and the epochs after which to evaluate it."""

    examples: Batching | Streaming
    freq: int | Collection[int] = 1  # number of epochs between evaluations; or the epochs, counted from 1

    def repeatable(self, epochs: range) -> Validation:
        """Return a validation that can be repeated: batches of an iterator are kept in memory."""
        examples, times = self.examples, self.times(epochs)
        examples.check_passes(times)
        if times > 1 and isinstance(examples, Streaming) and examples.source.is_once and examples.steps is not None:
            kept = KeptSource(examples.source, examples.steps)
            return dataclasses.replace(self, examples=dataclasses.replace(examples, source=kept))
        return self

    def times(self, epochs: range) -> int:
        """Return the number of evaluations in these epochs."""
        return sum(map(self.is_due, epochs))

    def is_due(self, epoch: int) -> bool:
        """Whether to evaluate after this epoch, counted from 0."""
        return (epoch + 1) % self.freq == 0 if isinstance(self.freq, int) else epoch + 1 in self.freq
