"""`preferences`: pairs of answers as examples for the loss "dpo", with their log-probabilities under a reference.

An example is a pair: both answers share a batch however it is shuffled, cut or sharded. The reference is the model
before training. It reads each pair once, so that training needs no second model in memory.
"""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, check_int, is_int
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import PyTree
from keras_dist.data.chat import FolderTokenizer, are_messages, check_unmarked, rows_of
from keras_dist.distribution.tracing import batch_shards
from keras_dist.errors import DataError, shorten
from keras_dist.losses.causal import CHUNK_SIZE
from keras_dist.losses.preference import IGNORED, answer_log_probabilities
from keras_dist.variables import call_context

_MULTIPLE = 64
"""The length of rows is a multiple of this, or the given one."""

_Answer = tuple[np.ndarray, np.ndarray]  # tokens with those before them, and 1 for tokens of the answer


def preferences(
    pairs: Any,
    folder: str | os.PathLike[str],
    model: Any,
    *,
    length: int = 4096,
    batch_size: int = 8,
    template: str | None = None,
) -> PreferencePairs:
    """Encode pairs of a preferred and a rejected answer, and compute their log-probabilities under `model` as it is.

    A pair is a dict with `chosen` and `rejected`, lists of messages as for `chat`. Both continue the messages in
    `prompt`; without `prompt`, those with which both begin. They may be texts, which continue the text in `prompt` and
    end with the tokenizer's `eos_token`. `tools` are passed to the template. Only answers after the prompt are trained.

    Call it before training: `model` is the reference. Call it before `enable_lora`, or before the adapters are trained,
    which are zero at first. The model computes on its mesh, in evaluation mode.

    Args:
        pairs: a list, a `datasets.Dataset` or another iterable, or the path of a `.jsonl` or `.parquet` file.
        folder: the folder of the network, as for `chat`.
        model: a model that takes `{"tokens", "segments"}` of shape (pairs, 2, length), as a `pretrained.Decoder`.
        length: largest number of tokens of a row. Pairs with a longer one are left out, which a warning counts.
        batch_size: number of pairs that the model reads at a time.
        template: a template instead of the folder's.

    Returns:
        Pairs by number, for `fit` and `evaluate` of a model with the loss "dpo": `(x, y)`, with `tokens` and `segments`
        (2, length) in `x`, and `targets` (2, length) and `reference` (2,) in `y`. The first row is preferred. Rows are
        as long as the longest one, rounded up to a multiple of 64 tokens; segment 0 is padding.

    Raises:
        DataError: a file, a pair or an argument cannot be used, no pair is left, or the template refuses a pair.
        MissingExtraError: `tokenizers`, for messages `jinja2`, or for `.parquet` files `pyarrow`, is not installed.

    Example:
        >>> import json, pathlib, tempfile
        >>> import keras_dist as kd
        >>> from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
        >>> folder = pathlib.Path(tempfile.mkdtemp())  # in practice of a network, which `kd.pretrained.load` loads
        >>> words = {"type": "WordLevel", "vocab": {"?": 0, "hello": 1, "world": 2}, "unk_token": "?"}
        >>> tokenizer = {"version": "1.0", "model": words, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
        >>> _ = (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        >>> attention = AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=8)
        >>> sizes = {"vocab_size": 8, "hidden_size": 16, "num_layers": 1}
        >>> config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(16))
        >>> decoder = Decoder(config)
        >>> pair = {"prompt": "hello ", "chosen": "world", "rejected": "hello hello"}
        >>> pairs = kd.data.preferences([pair], folder, decoder)
        >>> x, y = pairs[0]
        >>> x["tokens"][:, :4].tolist(), y["targets"][:, :4].tolist()
        ([[1, 2, 0, 0], [1, 1, 1, 0]], [[-100, 2, -100, -100], [-100, 1, 1, -100]])
        >>> decoder.enable_lora(rank=2, layers=".*query|.*value")
        >>> decoder.compile("adam", kd.losses.DPO(beta=0.1))
        >>> round(decoder.evaluate(pairs, verbose=0, return_dict=True)["loss"], 4)  # log(2) before training
        0.6931

    Source: the dataset formats of TRL, and its `precompute_ref_log_probs`.
    """
    check_int("length", length, 2, error=DataError)
    check_int("batch_size", batch_size, 1, error=DataError)
    if not hasattr(model, "_with_weights"):
        raise argument_error("model", model, "a `keras_dist.Model`", error=DataError)
    door = FolderTokenizer(pathlib.Path(folder).expanduser(), template, "`preferences`")
    encoded: list[tuple[_Answer, _Answer]] = []
    fix, number = "write texts, or messages as list<struct<role, content>>", -1
    for number, row in enumerate(rows_of(pairs, ["chosen", "rejected"], True, fix)):
        prompt, *answers = _checked(row, number)
        chosen, rejected = (door.encode_answer(prompt, each, row.get("tools"), number) for each in answers)
        if all(len(tokens) <= length and weights[1:].any() for tokens, weights in (chosen, rejected)):
            encoded.append((chosen, rejected))
    total = number + 1
    if len(encoded) < total:
        why = f"a row is longer than {length} tokens, or has no answer"
        warn(f"preferences: of {total} pairs, {total - len(encoded)} are left out: {why}")
    if not encoded:
        raise DataError("preferences: no pair is left", given=f"{total} pairs", fix="check `pairs` and `length`")
    longest = max(len(tokens) for pair in encoded for tokens, _ in pair)
    found = PreferencePairs(encoded, min(length, -(-longest // _MULTIPLE) * _MULTIPLE), door.pad_id)
    found.reference[:] = _reference(found, model._with_weights(), batch_size)
    return found


class PreferencePairs:
    """Pairs of rows, by number; `reference` has the log-probabilities of their answers, float32 (pairs, 2)."""

    def __init__(self, encoded: Sequence[tuple[_Answer, _Answer]], length: int, pad_id: int) -> None:
        self._encoded, self._length, self._pad_id = encoded, length, pad_id
        self.reference = np.zeros((len(encoded), 2), np.float32)
        self.resumes_with = {"tokens of a row": length}

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._encoded)

    def __getitem__(self, number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return `(x, y)` of a pair."""
        if not is_int(number, 0, len(self) - 1):
            raise IndexError(f"pair {number!r} of {len(self)}")
        shape = 2, self._length
        tokens, segments = np.full(shape, self._pad_id, np.int32), np.zeros(shape, np.int32)
        targets = np.full(shape, IGNORED, np.int32)
        for row, (found, weights) in enumerate(self._encoded[number]):
            size = len(found)
            tokens[row, :size], segments[row, :size] = found, 1
            targets[row, 1:size] = np.where(weights, found, IGNORED)[1:]
        return {"tokens": tokens, "segments": segments}, {"targets": targets, "reference": self.reference[number]}

    def __repr__(self) -> str:
        return f"<{len(self)} pairs of rows of {self._length} tokens>"


def _checked(row: Any, number: int) -> tuple[Any, Any, Any]:
    """Return prompt, preferred answer and rejected answer of a pair: three texts, or three lists of messages."""
    given: Any = map(row.get, ("prompt", "chosen", "rejected")) if isinstance(row, Mapping) else [None] * 3
    prompt, chosen, rejected = given = [*given]
    check_unmarked(given, f"preferences: pair {number}")
    if isinstance(chosen, str) and isinstance(rejected, str) and isinstance(prompt, str | None):
        return prompt or "", chosen, rejected
    if not all(map(are_messages, given[1:] if prompt is None else given)):
        summary = f"preferences: pair {number} must be a dict of three texts or three lists of messages"
        fix = '{"prompt": [{"role": "user", "content": ""}], "chosen": [...], "rejected": [...]}; `prompt` is optional'
        raise DataError(summary, given=shorten(row), fix=fix)
    if prompt is not None:
        return prompt, chosen, rejected
    shared = len(list(itertools.takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False))))
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _reference(pairs: PreferencePairs, built: Any, batch_size: int) -> np.ndarray:
    """Return the log-probabilities of the answers of all pairs (pairs, 2)."""
    shards, mesh = batch_shards(built.distribution), built.distribution.device_mesh.backend_mesh
    size, whole = -(-batch_size // shards) * shards, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def run(module: Any, x: PyTree, targets: jax.Array) -> jax.Array:
        context, logits = call_context.current(), module(x)
        projection = None if context is None else context.projection_of(logits)
        of = logits if projection is None or projection.shard_size <= CHUNK_SIZE else projection
        found = answer_log_probabilities(targets, of, CHUNK_SIZE)
        return jax.lax.with_sharding_constraint(found, whole)

    found: list[np.ndarray] = []
    for start in range(0, len(pairs), size):
        examples = [pairs[min(number, len(pairs) - 1)] for number in range(start, start + size)]
        x, y = jax.tree.map(lambda *rows: built.placed(np.stack(rows)), *examples)
        key = ("reference", size, *y["targets"].shape)
        found.append(np.asarray(built.run_compiled(key, run, x, y["targets"])))
    return np.concatenate(found)[: len(pairs)]
