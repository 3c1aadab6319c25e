"""Vocabularies of lookup layers: counts of tokens, files of tokens, and checks of given tokens."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist.errors import DataError, shorten, unreadable
from keras_dist.files.regular_files import read_regular

Token = str | int


class VocabularyTable:
    """A given or learned vocabulary, without special tokens, and counts of tokens."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.places: dict[Token, int] = {}
        self.weights: np.ndarray | None = None  # of the whole vocabulary, for "tf_idf"
        self.is_given = False
        self.expected: int | None = None  # size of the vocabulary in a file, including special tokens
        self.forget()

    def forget(self) -> None:
        """Clear the counts."""
        self.counts: collections.Counter[Token] = collections.Counter()
        self.documents: collections.Counter[Token] = collections.Counter()  # that contain a token
        self.size = 0  # number of documents

    def learned(self, most: int | None) -> list[Token]:
        """Return the `most` most frequent tokens; None for all."""
        # bytes sort by code points, as in Keras
        ordered = sorted(self.counts.items(), key=lambda item: (item[1], _sortable(item[0])), reverse=True)
        return [token for token, _ in ordered[:most]]

    def inverse_frequencies(self, tokens: Sequence[Token], special: int) -> np.ndarray:
        """Return the inverse document frequencies of tokens, after their mean for each special token."""
        counts = np.array([self.documents[token] for token in tokens], "float64")
        weights = np.log(1 + self.size / (1 + counts)).astype("float32")
        return np.concatenate([np.full(special, weights.mean(), "float32"), weights])


def _sortable(token: Token) -> Any:
    return token.encode("utf-8", "surrogateescape") if isinstance(token, str) else token


def as_token(token: Any, encoding: str) -> Any:
    """Decode bytes, and convert NumPy numbers to Python numbers."""
    if isinstance(token, bytes):
        return token.decode(encoding, "surrogateescape")
    return token.item() if isinstance(token, np.generic) else token


def lines_of(path: str | pathlib.Path, layer: str) -> list[str]:
    """Return the lines of a text file in UTF-8."""
    try:
        return read_regular(pathlib.Path(path), follow_links=True).decode("utf-8", "strict").splitlines()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, layer) from error


def tokens_of(lines: Iterable[str], kind: str, path: str | pathlib.Path, layer: str) -> list[Any]:
    """Convert the lines of a file to tokens of a kind, `"string"` or `"int64"`."""
    try:
        return list(lines) if kind == "string" else [int(line) for line in lines]
    except ValueError as error:
        raise _unreadable(path, error, layer) from error


def _unreadable(path: str | pathlib.Path, error: Exception, layer: str) -> DataError:
    summary = f"layer {layer!r} cannot read its vocabulary, text in UTF-8 with one token in each line"
    return unreadable(error)(summary, given=f"{path}: {error}", fix="check the path, or pass the tokens themselves")


def check_tokens(
    given: Sequence[Any],
    tokens: Sequence[Any],
    special: Sequence[Any],
    reserved: Sequence[Any],
    kind: str,
    max_tokens: int | None,
    layer: str,
) -> None:
    """Check a `given` vocabulary: `tokens`, without `special` ones, must be unique, of a kind and not `reserved`."""
    size = len(tokens) + len(special)
    repeated = [token for token, count in collections.Counter(tokens).items() if count > 1]
    misplaced = [token for token in reserved if token in tokens]
    kinds = str if kind == "string" else int
    others = [token for token in tokens if not isinstance(token, kinds)]
    if not tokens:
        wrong = "is empty"
    elif repeated:
        wrong = f"has tokens more than once: {shorten(repeated)}"
    elif misplaced:
        wrong = f"has {misplaced[0]!r} at a wrong place: special tokens are all in front, as {special}, or left out"
    elif others:
        wrong = f"has tokens of another kind than {kinds.__name__}: {shorten(others)}"
    elif max_tokens is not None and size > max_tokens:
        wrong = f"has {size} tokens with the special ones, more than max_tokens={max_tokens}"
    else:
        return
    expected = f"tokens, each once, with {special} in front or without them"
    raise argument_error("vocabulary", list(given), expected, wrong=wrong, layer=layer)
