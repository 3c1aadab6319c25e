"""`PackedStream`: sequences of an iterable, packed by grain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import grain
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.data.conversion import noting
from keras_dist.data.cursor import check_fields, check_same, resuming, set_state
from keras_dist.data.packing import SequenceReader, as_example
from keras_dist.data.resumable import ResumableIterator
from keras_dist.errors import shorten

_OPEN_ROWS = 64


class PackedStream:
    """Batches of packed rows, in the order of the source."""

    def __init__(self, source: Any, reader: SequenceReader, batch_size: int) -> None:
        self._source, self._reader, self._batch_size = source, reader, batch_size
        self.resumes_with = {"tokens of a row": reader.length, **getattr(source, "resumes_with", {})}
        self._rows = self._tokens = 0

    @property
    def efficiency(self) -> float:
        """Share of tokens that are not padding, exact for the rows read so far; 0 before the first."""
        return self._tokens / max(self._rows * self._reader.length, 1)

    def __iter__(self) -> PackedIterator:
        """Iterate over one pass; the iterator has `get_state` and `set_state`."""
        length = self._reader.length
        packed = grain.experimental.FirstFitPackIterDataset(
            _Pieces(self._source, self._reader),
            length_struct={"tokens": length, "weights": length},
            num_packing_bins=_OPEN_ROWS,
            shuffle_bins=False,
            meta_features=["weights"],
            padding_struct={"tokens": self._reader.pad_id, "weights": 0},
        )
        return PackedIterator(iter(packed.map(self._counted).batch(self._batch_size)), self.resumes_with)

    def _counted(self, row: dict[str, np.ndarray]) -> PyTree:
        segments = row["tokens_segment_ids"]
        self._rows, self._tokens = self._rows + 1, self._tokens + int(np.count_nonzero(segments))
        return as_example({**row, "positions": row["tokens_positions"], "segments": segments})

    def __repr__(self) -> str:
        return f"<rows of {self._reader.length} tokens, packed from {shorten(self._source)}>"


class PackedIterator(Iterator[PyTree]):
    """One pass over the batches."""

    def __init__(self, batches: grain.DatasetIterator[PyTree], resumes_with: Mapping[str, int | None]) -> None:
        self._batches, self._resumes_with = batches, resumes_with
        self._resumed: Any = None

    def __next__(self) -> PyTree:
        state, self._resumed = self._resumed, None
        with contextlib.nullcontext() if state is None else resuming("pack", state, IndexError):
            return next(self._batches)  # packs the rows again, of which the state has a number

    def get_state(self) -> dict[str, Any]:
        """Return the position, as JSON if the state of the source is."""
        return {"packed": {**self._resumes_with}, **self._batches.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to a position; raises `DataError` if it is of other data."""
        check_fields(state, [*self.get_state()])
        check_same(self._resumes_with, state["packed"])
        set_state(self._batches, {name: value for name, value in state.items() if name != "packed"}, "pack")
        self._resumed = state


class _Pieces(grain.IterDataset[dict[str, np.ndarray]]):
    """Sequences, cut into pieces."""

    def __init__(self, source: Any, reader: SequenceReader) -> None:
        super().__init__()
        self._source, self._reader = source, reader

    def __iter__(self) -> _PiecesIterator:
        return _PiecesIterator(ResumableIterator(self._source, shorten(self._source)), self._reader)


class _PiecesIterator(grain.DatasetIterator[dict[str, np.ndarray]]):
    """One pass over the pieces; its state is the position before the current sequence, and the next piece in it."""

    def __init__(self, sequences: ResumableIterator, reader: SequenceReader) -> None:
        super().__init__()
        self._sequences, self._reader = sequences, reader
        self._before, self._pieces, self._next = sequences.get_state(), [], 0

    def __next__(self) -> dict[str, np.ndarray]:
        while self._next == len(self._pieces):
            self._before, self._pieces, self._next = self._sequences.get_state(), [], 0
            self._pieces = self._read()
        self._next += 1
        return self._pieces[self._next - 1]

    def _read(self) -> list[dict[str, np.ndarray]]:
        sequence = next(self._sequences)
        with noting(lambda: f"sequence after position {shorten(self._before)}"):
            tokens, weights = self._reader.read(sequence)
            (size,) = self._reader.sizes(np.array([len(tokens)]))
        return [self._reader.piece(tokens, weights, start) for start in range(0, int(size), self._reader.length)]

    def get_state(self) -> dict[str, Any]:
        """Return the position."""
        if self._next == len(self._pieces):
            return {"source": self._sequences.get_state(), "piece": 0}
        return {"source": self._before, "piece": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to a position."""
        self._sequences.set_state(state["source"])
        self._before, self._pieces, self._next = state["source"], [], 0
        if state["piece"]:
            with resuming("pack", state):
                self._pieces, self._next = self._read(), state["piece"]
                self._pieces[self._next]  # the piece that follows
