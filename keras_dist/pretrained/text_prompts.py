"""Text for `generate`: prompts as tokens, and tokens as text, by the tokenizer of a folder."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist.data.chat import FolderTokenizer, messages_of

_FILES = ("chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_EXAMPLE = ["Hello", [{"role": "user", "content": "Hello"}]]


def tokenizer_of(folder: Any) -> FolderTokenizer:
    """Return the tokenizer of a folder, which is read again after its files changed."""
    if not isinstance(folder, str | os.PathLike):
        raise argument_error("tokenizer", folder, "the folder of a network, with `tokenizer.json`", example="Qwen3/")
    path = pathlib.Path(folder).expanduser().absolute()
    return _loaded(path, tuple(each.stat().st_mtime_ns if (each := path / name).exists() else 0 for name in _FILES))


@functools.lru_cache(maxsize=4)
def _loaded(folder: pathlib.Path, _dates: tuple[int, ...]) -> FolderTokenizer:
    return FolderTokenizer(folder, user="`generate(tokenizer=...)`")


def encoded_prompts(tokenizer: FolderTokenizer, prompts: Any) -> list[np.ndarray]:
    """Return the tokens of texts and conversations."""
    expected = "a list of prompts, each a text of at least one token or a list of messages"
    is_listed = isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes)
    if isinstance(prompts, str | Mapping) or (is_listed and any(_is_message(each) for each in prompts)):
        raise argument_error("prompts", prompts, expected, fix="put the prompt into a list: prompts=[prompt]")
    is_known = is_listed and all(isinstance(each, str | Mapping | list | tuple) for each in prompts)
    if not is_known or not prompts or any(_is_tokens(each) for each in prompts):
        fix = f"for example prompts={_EXAMPLE!r}; leave out `tokenizer` for prompts of tokens"
        raise argument_error("prompts", prompts, expected, fix=fix)
    rows = [
        tokenizer.encode(each)
        if isinstance(each, str)
        else tokenizer.encode_conversation(*messages_of(each, "messages", number), number)
        for number, each in enumerate(prompts)
    ]
    if not all(rows):
        raise argument_error("prompts", prompts[rows.index([])], expected, example=_EXAMPLE)
    return [np.array(row, np.int64) for row in rows]


class Pieces:
    """The text of a row, piece by piece: together the pieces equal the text of all tokens.

    Text is decoded from the piece before on, since a token may be decoded otherwise at the beginning of a text. What
    later tokens may change is held back: incomplete characters, bytes, and text from which spaces are removed.
    """

    def __init__(self, tokenizer: FolderTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []  # of the piece before, and of the next one
        self._known = 0  # number of the tokens whose text is returned

    def added(self, token: int, is_last: bool) -> str:
        """Return the text that a token completes; after the last token all text."""
        self._tokens.append(token)
        is_open = not is_last and (self._tokenizer.is_cleaned or self._tokenizer.is_byte(token))
        text = "" if is_open else self._tokenizer.decode(self._tokens)
        if is_open or (text.endswith("\ufffd") and not is_last):
            return ""
        before = self._tokenizer.decode(self._tokens[: self._known])
        if len(text) > len(before):
            self._tokens = self._tokens[self._known :]
            self._known = len(self._tokens)
        return text[len(before) :]


def _is_message(prompt: Any) -> bool:
    return isinstance(prompt, Mapping) and "role" in prompt


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list | tuple) and not any(isinstance(each, Mapping) for each in prompt)
