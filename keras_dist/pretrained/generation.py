"""`generate`: new tokens for prompts, one at a time, with a cache of keys and values.

Two programs do it: one reads the prompts and fills the cache, the other runs a loop on the devices until every row
has ended. A stream runs the same loop for a token at a time, so that its tokens are the same. Prompts are padded to
sizes from a short list, so that few programs are compiled. Each row draws with its own key: its tokens do not depend on
the other rows, on padding or on the mesh.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import numpy as np

from keras_dist._support.arguments import (
    argument_error,
    check_flag,
    check_int,
    check_number,
    check_option,
    check_optional,
    is_int,
)
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError, shorten
from keras_dist.models import Model
from keras_dist.pretrained.text_prompts import Pieces, encoded_prompts, tokenizer_of
from keras_dist.training.generation import Generation, Sampling, check_positions

_MOST = 2**31 - 1
_LEAST = 1e-30
"""The lowest temperature: a lower one is 0 in float32."""


class _Options(TypedDict, total=False):
    temperature: float
    top_k: int | None
    top_p: float | None
    stop_tokens: int | Sequence[int] | None
    seed: int
    verbose: int


_Folder = str | os.PathLike[str]


@overload
def generate(
    model: Model,
    prompts: Sequence[ArrayLike | bytes],
    max_new_tokens: int = 64,
    *,
    tokenizer: None = None,
    stream: Literal[False] = False,
    **options: Unpack[_Options],
) -> list[list[int]]: ...
@overload
def generate(
    model: Model,
    prompts: Sequence[ArrayLike | bytes],
    max_new_tokens: int = 64,
    *,
    tokenizer: None = None,
    stream: Literal[True],
    **options: Unpack[_Options],
) -> Generator[list[int | None]]: ...
@overload
def generate(
    model: Model,
    prompts: Sequence[Any],
    max_new_tokens: int = 64,
    *,
    tokenizer: _Folder,
    stream: Literal[False] = False,
    **options: Unpack[_Options],
) -> list[str]: ...
@overload
def generate(
    model: Model,
    prompts: Sequence[Any],
    max_new_tokens: int = 64,
    *,
    tokenizer: _Folder,
    stream: Literal[True],
    **options: Unpack[_Options],
) -> Generator[list[str | None]]: ...
def generate(
    model: Model,
    prompts: Sequence[Any],
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: int | Sequence[int] | None = None,
    seed: int = 0,
    tokenizer: _Folder | None = None,
    stream: bool = False,
    verbose: int = 1,
) -> list[list[int]] | list[str] | Generator[list[int | None]] | Generator[list[str | None]]:
    """Continue each prompt.

    All rows are computed together, sharded as batches of the model are; the cache follows the layout of the keys that
    the model computes, such as heads over `model`. The first call for a size of prompts compiles two programs, which
    later calls use again: prompts are padded to 32, 64, 128 ... tokens, their number to a power of two, and the cache
    has slots for prompts and new tokens in steps of 64 or a quarter. `kd.use_compilation_cache` keeps programs on disk.

    Weights that `fit` changes are seen by the next call. Networks whose rotary factors depend on the length (longrope
    of Phi-3) choose them by the longest position in a call: rows beyond that border, and rows beside them, differ from
    computing without a cache.

    Args:
        model: a `pretrained.Decoder`, or another model with the methods of `pretrained.CachedModel`.
        prompts: tokens of each prompt: lists or arrays of integers, or `bytes`, of any lengths of at least 1. With
            `tokenizer` texts, or conversations: lists of messages `{"role": ..., "content": ...}`, which the chat
            template of the folder renders up to the answer; or dicts with `messages`, and `tools` for the template.
        max_new_tokens: largest number of new tokens.
        temperature: 0 for the likeliest token each time; else logits are divided by it, and tokens are drawn.
        top_k: draw among this many likeliest tokens only; needs a temperature.
        top_p: draw among the likeliest tokens whose probabilities sum to this, between 0 and 1;
            needs a temperature.
        stop_tokens: a row ends after one of these; by default after `eos_token_id` of `generation_config.json` or
            `config.json` in the folder of the tokenizer, or its `eos_token`; without a tokenizer after none.
        seed: seed of the draws. Row i of any call with this seed draws the same numbers.
        tokenizer: the folder of a network with `tokenizer.json`, and `chat_template.jinja` or `tokenizer_config.json`
            for conversations. Prompts and results are text then.
        stream: return a generator that computes a token of each prompt at a time. The tokens are the same.
        verbose: 0 for silence, 1 for a line on standard error before a program is compiled.

    Returns:
        The new tokens of each prompt, with the stop token if there was one; with `tokenizer` their text without
        special tokens. With `stream` a generator of lists: of the next token of each prompt, or of the next piece of
        its text, which may be empty until a character is complete; None for prompts that have ended.

    Raises:
        ModelError: an argument is invalid, or the model keeps no cache.
        DataError: a file of the tokenizer cannot be read, a message is invalid, or the template refuses it.
        MissingExtraError: `tokenizers`, or for conversations `jinja2`, is not installed.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
        >>> attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8)
        >>> sizes = {"vocab_size": 64, "hidden_size": 16, "num_layers": 2}
        >>> sizes |= {"attention": attention, "feed_forward": FeedForwardConfig(32)}
        >>> decoder = Decoder(DecoderConfig(family="llama", **sizes))
        >>> [len(tokens) for tokens in kd.generate(decoder, [[1, 2, 3], [4]], max_new_tokens=5)]
        [5, 5]
        >>> for tokens in kd.generate(decoder, [[1, 2, 3], [4]], max_new_tokens=5, stream=True):
        ...     assert len(tokens) == 2

    Source: Holtzman et al. 2019, arXiv:1904.09751 (nucleus sampling).
    """
    text = None if tokenizer is None else tokenizer_of(tokenizer)
    rows = _checked_prompts(prompts) if text is None else encoded_prompts(text, prompts)
    max_new_tokens = check_int("max_new_tokens", max_new_tokens, 1, 2**30, example=64)
    by_default = [] if text is None else text.stop_tokens
    stops = _checked_stops(by_default if stop_tokens is None else stop_tokens)
    sampling, factors = _checked_sampling(temperature, top_k, top_p)
    seed = check_int("seed", seed, 0, 2**32 - 1, example=0)
    is_stream, shows = check_flag("stream", stream), check_option("verbose", verbose, (0, 1)) == 1
    if not isinstance(model, Model):
        raise argument_error("model", model, "a `keras_dist.Model`")
    _check_tokens(model, rows)
    check_positions(model, max(map(len, rows)), max_new_tokens)
    built = model._with_weights()
    run = Generation(built, rows, max_new_tokens, sampling, shows)
    if is_stream:
        pieces = None if text is None else [Pieces(text) for _ in rows]
        return _streamed(run.stream(stops, seed, factors), len(rows), max_new_tokens, stops, pieces)
    with _naming_memory(len(rows), max_new_tokens):
        tokens = np.asarray(run(stops, seed, factors))
    found = [_until_stop(row, max_new_tokens, stops) for row in tokens.reshape(len(tokens), -1)[: len(rows)]]
    return found if text is None else [text.decode(row) for row in found]


def _streamed(
    steps: Iterator[np.ndarray], count: int, most: int, stops: Sequence[int], pieces: Sequence[Pieces] | None
) -> Generator[list[Any]]:
    """Yield a list with a token, or a piece of text, of each row; None for rows that have ended."""
    has_ended = [False] * count
    with _naming_memory(count, most):
        for number, tokens in enumerate(steps, 1):
            found: list[Any] = [None if end else token for end, token in zip(has_ended, tokens.tolist(), strict=False)]
            has_ended = [token is None or token in stops or number == most for token in found]
            if pieces is not None:
                parts = zip(pieces, found, has_ended, strict=True)
                found = [None if token is None else piece.added(token, end) for piece, token, end in parts]
            yield found
            if all(has_ended):
                return


@contextlib.contextmanager
def _naming_memory(count: int, new_tokens: int) -> Generator[None]:
    """Turn an error of JAX about memory into one that names the sizes."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        given = f"{count} prompts, max_new_tokens={new_tokens}"
        fix = "ask for fewer new tokens, or pass fewer prompts in a call"
        raise ModelError("generate: not enough memory for the cache", given=given, fix=fix) from error


def _checked_prompts(prompts: Any) -> list[np.ndarray]:
    is_listed = isinstance(prompts, Sequence | np.ndarray | jax.Array) and not isinstance(prompts, str)
    try:
        rows = [np.asarray([*one] if isinstance(one, bytes) else one) for one in prompts] if is_listed else []
    except Exception:  # ragged lists, and arrays without dims
        rows = []
    wrong = [row for row in rows if row.ndim != 1 or not row.size or not np.issubdtype(row.dtype, np.integer)]
    if not rows or wrong:
        expected = "a list of prompts, each a list or an array of at least one token (an integer)"
        given = wrong[0] if wrong else prompts
        fix = "for example prompts=[[1, 2, 3]]; for text pass the folder of a tokenizer as `tokenizer`"
        raise argument_error("prompts", given, expected, fix=fix)
    return rows


def _checked_stops(stop_tokens: Any) -> list[int]:
    listed = [stop_tokens] if is_int(stop_tokens) else stop_tokens
    is_listed = isinstance(listed, Iterable) and not isinstance(listed, str)
    if not is_listed or not all(is_int(token, 0, _MOST) for token in listed):
        raise argument_error("stop_tokens", stop_tokens, "a token, or a list of tokens (integers)", example=[2])
    return sorted({int(token) for token in listed})


def _check_tokens(model: Any, rows: Sequence[np.ndarray]) -> None:
    """Check that tokens are in the vocabulary, if the model has a `vocab_size`."""
    size = getattr(model, "vocab_size", None)
    size = _MOST + 1 if size is None else size
    wrong = [token for row in rows for token in row.tolist() if not 0 <= token < size]
    if wrong:
        fix = "use the tokenizer of the model; bytes are tokens of a model that was trained on bytes"
        summary = "generate: `prompts` has tokens that are not in the vocabulary"
        raise ModelError(summary, given=shorten(wrong), expected=f"tokens from 0 to {size - 1}", fix=fix)


def _checked_sampling(temperature: Any, top_k: Any, top_p: Any) -> tuple[Sampling, tuple[np.float32, np.float32]]:
    """Return the options of the programs, and temperature and `top_p`, which they take as numbers."""
    temperature = check_number("temperature", temperature, 0, example=0.8)
    top_k = check_optional(check_int, "top_k", top_k, 1, example=50)
    top_p = check_optional(check_number, "top_p", top_p, above=0, high=1, example=0.9)
    drawn = [f"{name}={value}" for name, value in (("top_k", top_k), ("top_p", top_p)) if value is not None]
    if drawn and not temperature:
        given, fix = f"{', '.join(drawn)}, temperature=0", "temperature=1.0 draws; or leave them out"
        raise ModelError("generate: `top_k` and `top_p` need a temperature above 0", given=given, fix=fix)
    factors = np.float32(max(temperature, _LEAST)), np.float32(1 if top_p is None else top_p)
    return (Sampling(False, top_k, top_p is not None) if temperature else Sampling(True, None, False)), factors


def _until_stop(row: np.ndarray, most: int, stops: Sequence[int]) -> list[int]:
    tokens = row[:most].tolist()
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens
