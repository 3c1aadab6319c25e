"""`pack`: token sequences of any lengths as rows of one length, with segments, positions and weights.

Sequences that are read by number are packed once, by their lengths. Rows are then examples by number: a position in
the data is the number of a batch, `fit` shuffles the rows in each epoch, and each process reads the sequences of its
own rows only. grain's packers (0.2.18) are iterators: they keep the order of the source, and every process reads every
sequence. Their state is the position in the source before the open rows, which are packed again. It is exact and
small, and `packed_streams` uses them for iterables.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_kind, check_option, is_int
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import PyTree
from keras_dist.data.conversion import check_batch_size, noting, to_host
from keras_dist.data.resumable import check_source, is_numbered
from keras_dist.errors import DataError, shorten, unknown_name_error

if TYPE_CHECKING:
    from keras_dist.data.packed_streams import PackedStream

_SHOWN = 5
_LONGEST = 2**24
"""Largest number of tokens in a row, which is five arrays."""


def pack(
    source: Any,
    length: int,
    *,
    pad_id: int = 0,
    overlong: str = "split",
    tokens: str = "tokens",
    loss_mask: str | None = None,
    batch_size: int | None = None,
) -> PackedRows | PackedStream:
    """Pack sequences of tokens into rows of one length.

    A row is `(x, y, sample_weight)`, with `x = {"tokens", "positions", "segments"}` and `y = tokens`, int32 of shape
    (length,). Segments count from 1, and 0 is padding; positions restart in each segment. `sample_weight`, float32 of
    shape (length,), is the weight of predicting a token from those before it: 0 for padding and the first token of a
    segment. The model must keep attention within segments.

    A sequence is a list or array of integers, or `bytes`, whose tokens are 0 to 255. To pack text, encode it first:
    `text.encode()` or `Tokenizer.from_file("tokenizer.json").encode(text).ids` of the library `tokenizers`.

    Args:
        source: sequences, or dicts with them, as a list, an array or another object with `__len__` and `__getitem__`,
            for example the result of `mix`; an iterable; or a function that returns an iterable for each epoch. Sources
            with a length are read once to count tokens, and a sequence again with each of its rows.
        length: number of tokens in a row.
        pad_id: token of the padding.
        overlong: "split" cuts sequences longer than `length` into several segments; "drop" leaves them out; "error"
            raises.
        tokens: key of the sequence in examples that are dicts, for example "input_ids".
        loss_mask: key of weights of the tokens in examples that are dicts, for example to train on answers alone: 0 for
            a token of the prompt. Without it all weights are 1.
        batch_size: rows in a batch of an iterable source, by default 32. Other sources take it in `fit`.

    Returns:
        For sources with a length, rows by number, as `fit`, `mix` and `DataLoader` take them. `fit` shuffles the rows;
        the same pieces share a row in each epoch. For other sources an iterable of batches in order, whose iterators
        have `get_state` and `set_state`. Both have `efficiency`, the share of tokens that are not padding: exact for
        rows by number, and for an iterable exact for the rows that were read so far.

    Raises:
        DataError: an argument or a sequence is invalid, all are empty, or a sequence is too long for "error".

    Example:
        >>> from keras_dist.data import pack
        >>> rows = pack([[5, 6, 7], [8, 9], [1, 2, 3, 4]], length=6)
        >>> x, y, sample_weight = rows[0]
        >>> print(x["tokens"], x["segments"], x["positions"], sample_weight)
        [5 6 7 8 9 0] [1 1 1 2 2 0] [0 1 2 0 1 0] [0. 1. 1. 0. 1. 0.]
        >>> rows
        <2 rows of 6 tokens, 75.0% packed>
    """
    check_source("source", source, "sequences of tokens")
    for name, key in (("tokens", tokens), ("loss_mask", loss_mask)):
        check_kind(name, key, str | int | None, "a key of examples that are dicts", error=DataError)
    reader = SequenceReader(
        check_int("length", length, 2, _LONGEST, example=4096, error=DataError),
        check_int("pad_id", pad_id, -(2**31), 2**31 - 1, error=DataError),
        check_option("overlong", overlong, ("split", "drop", "error"), error=DataError),
        tokens,
        loss_mask,
    )
    if is_numbered(source):
        if batch_size is not None:
            given, fix = f"batch_size={shorten(batch_size)}, a source with a length", "pass batch_size to fit"
            raise DataError("`batch_size` of `pack` is for iterables", given=given, fix=fix)
        return PackedRows(source, reader)
    from keras_dist.data.packed_streams import PackedStream  # imports grain, in 0.25 s  # noqa: PLC0415

    return PackedStream(source, reader, check_batch_size(batch_size))


@dataclasses.dataclass(frozen=True)
class SequenceReader:
    """Reads examples as tokens with weights, and cuts them into pieces; attributes are arguments of `pack`."""

    length: int
    pad_id: int
    overlong: str
    tokens: str
    loss_mask: str | None

    def read(self, example: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of an example, and their weights."""
        found, weights = self._entry(example, self.tokens), None
        if isinstance(found, bytes | bytearray | memoryview):
            found = np.frombuffer(found, np.uint8)
        array = _as_array(found if isinstance(found, list | tuple) else to_host(found))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            fix = "text.encode(), or the ids of a tokenizer" if isinstance(found, str) else "put one sequence in a list"
            raise argument_error("sequence", found, "integers of shape (tokens,), or bytes", fix=fix, error=DataError)
        check_fits(array, "the sequence")
        if self.loss_mask is not None:
            weights = _as_array(to_host(self._entry(example, self.loss_mask)))
            if weights.dtype.kind in "OSUcmM" or weights.shape != array.shape or not _is_finite(weights):
                given = f"{weights.dtype} of shape {weights.shape} for {len(array)} tokens"
                fix = "give each token of an example a weight, for example 0 or 1"
                raise DataError(f"{self.loss_mask!r} must have a finite number for each token", given=given, fix=fix)
        weights = np.ones(len(array)) if weights is None else weights
        return array.astype(np.int32), weights.astype(np.float32)

    def _entry(self, example: PyTree, key: str) -> Any:
        if not isinstance(example, Mapping):
            if key == self.loss_mask:
                fix = "let examples be dicts of tokens and weights, or leave out loss_mask"
                raise argument_error("loss_mask", key, "a key of examples that are dicts", fix=fix, error=DataError)
            return example
        if key not in example:
            fix = "name the key: pack(tokens=...)" if key == self.tokens else "give every example this key"
            raise unknown_name_error("the example has no key", key, map(str, example), fix=fix, error=DataError)
        return example[key]

    def sizes(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many tokens of sequences of these lengths are packed; raise if one is too long."""
        over = np.flatnonzero(lengths > self.length)
        if self.overlong == "error" and len(over):
            shown = ", ".join(f"sequence {number}: {lengths[number]} tokens" for number in over[:_SHOWN])
            more = f", and {len(over) - _SHOWN} more" if len(over) > _SHOWN else ""
            fix = 'overlong="split" or "drop", or a larger length'
            raise DataError(f"sequences are longer than {self.length} tokens", given=shown + more, fix=fix)
        return np.where(lengths > self.length, 0, lengths) if self.overlong == "drop" else lengths

    def piece(self, tokens: np.ndarray, weights: np.ndarray, start: int) -> dict[str, Any]:
        """Return the piece of a sequence that begins at `start`; its first token has no weight."""
        part = weights[start : start + self.length].copy()
        part[:1] = 0
        return {"tokens": tokens[start : start + self.length], "weights": part}


def _as_array(value: Any) -> np.ndarray:
    """Return a value as an array, of objects where it has no other form."""
    try:
        return np.asarray(value)
    except Exception:  # ragged lists, and the user's own __array__
        return np.asarray(None)


def as_example(row: Mapping[str, Any]) -> PyTree:
    """Return `(x, y, sample_weight)` of the arrays of a row."""
    x = {name: row[name] for name in ("tokens", "positions", "segments")}
    return x, row["tokens"], row["weights"]


class PackedRows:
    """Rows of packed sequences, by number; `efficiency` is the exact share of tokens that are not padding."""

    def __init__(self, source: Any, reader: SequenceReader) -> None:
        self._source, self._reader = source, reader
        self.resumes_with = {"tokens of a row": reader.length, **getattr(source, "resumes_with", {})}
        lengths = np.array([len(self._read(number)[0]) for number in range(len(source))], np.int64)
        pieces = _pieces(reader.sizes(lengths), reader.length)
        if not len(pieces):
            given = f"{len(source)} sequences, {len(lengths) and lengths.max()} tokens in the longest"
            fix = "check the path or filter that made it, and `overlong`"
            raise DataError("the source has no token to pack", given=given, fix=fix)
        rows = best_fit(pieces[:, 2].tolist(), reader.length)
        order = np.argsort(rows, kind="stable")
        self._pieces = pieces[order]  # of each row in turn: sequence, first token, number of tokens
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(rows))])
        self.efficiency = float(pieces[:, 2].sum() / (len(self) * reader.length))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> PyTree:
        """Return `(x, y, sample_weight)` of a row."""
        if not is_int(row, 0, len(self) - 1):
            raise IndexError(f"row {row!r} of {len(self)}")
        shape, end = self._reader.length, 0
        found: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in ("tokens", "positions", "segments")}
        found |= {"tokens": np.full(shape, self._reader.pad_id, np.int32), "weights": np.zeros(shape, np.float32)}
        for segment, (number, start, size) in enumerate(self._pieces[self._starts[row] : self._starts[row + 1]], 1):
            piece = self._reader.piece(*self._read(int(number)), int(start))
            if len(piece["tokens"]) != size:
                given = f"sequence {number}: {len(piece['tokens'])} tokens from token {start} on, before {size}"
                fix = "let the source return the same tokens each time"
                raise DataError("a sequence has another length than when it was packed", given=given, fix=fix)
            place = slice(end, end := end + int(size))
            piece |= {"positions": np.arange(size), "segments": segment}
            for name, values in piece.items():
                found[name][place] = values
        return as_example(found)

    def _read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        with noting(f"sequence {number}"):
            return self._reader.read(self._source[number])

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self._reader.length} tokens, {self.efficiency:.1%} packed>"


def _pieces(sizes: np.ndarray, length: int) -> np.ndarray:
    """Return (sequence, first token, number of tokens) of all pieces of at most `length` tokens."""
    counts = -(-sizes // length)
    sequence = np.repeat(np.arange(len(sizes)), counts)
    start = (np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    return np.stack([sequence, start, np.minimum(sizes[sequence] - start, length)], axis=1)


def best_fit(sizes: list[int], length: int) -> np.ndarray:
    """Return the row of each piece, in order: the latest of the fullest open rows that have space for it."""
    rows = np.empty(len(sizes), np.int64)
    count, spaces = 0, []  # all spaces of open rows, sorted
    with_space: defaultdict[int, list[int]] = defaultdict(list)
    for number, size in enumerate(sizes):
        place = bisect.bisect_left(spaces, size)
        if place == len(spaces):
            row, space, count = count, length, count + 1
        else:
            space = spaces[place]
            row = with_space[space].pop()
            if not with_space[space]:
                del spaces[place]
        rows[number], left = row, space - size
        if left and not with_space[left]:
            bisect.insort(spaces, left)
        if left:
            with_space[left].append(row)
    return rows


def _is_finite(weights: np.ndarray) -> bool:
    """Return whether all numbers are finite as float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(weights.astype(np.float32)).all())
