"""`Batching`: examples in batches of one size, and how many of them make an epoch."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator

from keras_dist.data.arrays import ArraySource


@dataclasses.dataclass(frozen=True)
class Span:
    """The batches of an epoch.

    Attributes:
        began: the epoch in which this pass through the examples began; what is shuffled, is so once for each pass.
        batches: which of the batches of the pass.
    """

    began: int
    batches: range


@dataclasses.dataclass(frozen=True, eq=False)
class Batching:
    """Examples in batches of one size.

    Attributes:
        source: the examples.
        batch_size: rows in all batches but the last.
        steps: how many batches make an epoch; None for all.
    """

    source: ArraySource
    batch_size: int
    steps: int | None = None

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return -(-self.source.length // self.batch_size)

    @property
    def steps_of_epoch(self) -> int:
        """How many batches make an epoch, if there are as many."""
        return self.steps or self.batches

    def spans(self, epochs: range) -> Iterator[tuple[int, Span]]:
        """The epochs with their batches: each goes on where the one before has stopped.

        An epoch ends with the last batch, and the next begins with the first. If it is short of batches then, a warning
        says so.

        Source: `keras.src.trainers.epoch_iterator.EpochIterator`.
        """
        began, start = epochs.start, 0
        for epoch in epochs:
            stop = min(start + self.steps_of_epoch, self.batches)
            if stop - start < self.steps_of_epoch:
                self._warn_of_end(stop - start)
            yield epoch, Span(began, range(start, stop))
            began, start = (began, stop) if stop < self.batches else (epoch + 1, 0)

    def once(self) -> range:
        """The batches of the only epoch."""
        ((_, span),) = self.spans(range(1))
        return span.batches

    def _warn_of_end(self, left: int) -> None:
        warnings.warn(
            f"Your input ran out of data: an epoch of {self.steps} steps ends after {left}\n"
            f"  given:    {self.source.length} rows in {self.batches} batches of {self.batch_size}\n"
            f"  expected: a multiple of {self.steps} batches\n"
            f"  fix:      fewer steps, or a smaller batch_size",
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Validation:
    """What is evaluated after which epochs.

    Attributes:
        batching: the examples.
        freq: after every so many epochs; or the epochs, counted from 1.
    """

    batching: Batching
    freq: int | Collection[int] = 1

    def is_due(self, epoch: int) -> bool:
        """Whether it follows this epoch, counted from 0."""
        return (epoch + 1) % self.freq == 0 if isinstance(self.freq, int) else epoch + 1 in self.freq
