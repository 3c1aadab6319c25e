"""The vocabulary of layers that look up tokens: what they learned, files of tokens, checks of given tokens."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist.errors import DataError, shorten, unreadable
from keras_dist.saving.regular_files import read_regular

Token = str | int


class VocabularyTable:
    """The vocabulary that a layer was given or has learned. NNX takes it for one value.

    Attributes:
        tokens: the vocabulary without special tokens, in order.
        places: the index of each.
        weights: of the whole vocabulary, for `"tf_idf"`.
        is_given: whether the vocabulary was given, and is not to be learned.
        counts: how often each token was seen.
        documents: in how many documents each token was seen.
        size: the number of documents.
        expected: the size of the vocabulary that a file is to bring, special tokens included; None for any.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.places: dict[Token, int] = {}
        self.weights: np.ndarray | None = None
        self.is_given = False
        self.expected: int | None = None
        self.forget()

    def forget(self) -> None:
        """Forget what was counted."""
        self.counts: collections.Counter[Token] = collections.Counter()
        self.documents: collections.Counter[Token] = collections.Counter()
        self.size = 0

    def learned(self, most: int | None) -> list[Token]:
        """Return the tokens that were counted, the most frequent first, `most` of them; None for all."""
        # as bytes: in the order of code points, as in Keras
        ordered = sorted(self.counts.items(), key=lambda item: (item[1], _sortable(item[0])), reverse=True)
        return [token for token, _ in ordered[:most]]

    def inverse_frequencies(self, tokens: Sequence[Token], special: int) -> np.ndarray:
        """Return the inverse document frequencies of tokens, and in front their mean for each special one."""
        counts = np.array([self.documents[token] for token in tokens], "float64")
        weights = np.log(1 + self.size / (1 + counts)).astype("float32")
        return np.concatenate([np.full(special, weights.mean(), "float32"), weights])


def _sortable(token: Token) -> Any:
    return token.encode("utf-8", "surrogateescape") if isinstance(token, str) else token


def as_token(token: Any, encoding: str) -> Any:
    """Return text for bytes, and a number of Python for one of numpy."""
    if isinstance(token, bytes):
        return token.decode(encoding, "surrogateescape")
    return token.item() if isinstance(token, np.generic) else token


def lines_of(path: str | pathlib.Path, layer: str) -> list[str]:
    """Return the lines of a file of text in UTF-8.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return read_regular(pathlib.Path(path), follow_links=True).decode("utf-8", "strict").splitlines()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, layer) from error


def tokens_of(lines: Iterable[str], kind: str, path: str | pathlib.Path, layer: str) -> list[Any]:
    """Return the lines of a file as tokens of a kind, `"string"` or `"int64"`.

    Raises:
        DataError: a line is not an integer.
    """
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
    """Raise ModelError unless tokens are a vocabulary.

    Args:
        given: what the user gave.
        tokens: the same without special tokens in front.
        special: special tokens, as they may be in front.
        reserved: tokens that are not allowed elsewhere.
        kind: `"string"` or `"int64"`.
        max_tokens: the largest size, special tokens included.
        layer: the name of the layer.
    """
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
