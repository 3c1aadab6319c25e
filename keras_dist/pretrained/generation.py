"""`generate`: new tokens for prompts, one at a time, with a cache of keys and values.

Two programs do it: one reads the prompts and fills the cache, the other runs a loop on the devices until every row
has ended. Prompts are padded to sizes from a short list, so that few programs are compiled. Each row draws with its
own key: its tokens do not depend on the other rows, on padding or on the mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.arguments import argument_error, check_int, check_number, check_optional, is_int
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.losses.vocabulary import Projection
from keras_dist.models import Model
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.uneven_rows import rows_multiple
from keras_dist.variables import call_context

_SMALLEST = 16
"""Lengths are padded to this number times a power of two."""
_STOPS = 4
"""Stop tokens are padded to a multiple of this."""
_MOST = 2**31 - 1
_LEAST = 1e-30
"""The lowest temperature: a lower one is 0 in float32."""


@runtime_checkable
class CachedModel(Protocol):
    """A model that can continue a sequence: what `generate` needs, also of a `flax.nnx.Module` in `Model.from_nnx`.

    `empty_cache` returns any pytree of arrays. The call takes tokens, positions and segments, each (batch, length), and
    the cache of the tokens before; segment 0 is padding, which later tokens must not see. It returns logits (batch,
    length, vocabulary) and the cache with the new tokens, of the same shapes and dtypes. Both are traced. What the next
    token needs is in the cache: the call must not change variables.
    """

    def empty_cache(self, batch_size: int, slots: int) -> PyTree:
        """Return a cache for `slots` tokens of each row."""
        ...

    def __call__(self, inputs: dict[str, jax.Array], *, cache: PyTree) -> tuple[jax.Array, PyTree]:
        """Return the logits, and the cache afterwards."""
        ...


def generate(
    model: Model,
    prompts: Sequence[ArrayLike | bytes],
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: int | Sequence[int] = (),
    seed: int = 0,
) -> list[list[int]]:
    """Continue each prompt.

    All rows are computed together, sharded as batches of the model are; the cache follows the layout of the keys that
    the model computes, such as heads over `model`. The first call for a size of prompts compiles two programs, which
    later calls use again. Weights that `fit` changes are seen by the next call. Networks whose rotary factors depend
    on the length (longrope of Phi-3) choose them by the longest position in a call: rows beyond that border, and rows
    beside them, differ from computing without a cache.

    Args:
        model: a `pretrained.Decoder`, or another model with the methods of `pretrained.CachedModel`.
        prompts: tokens of each prompt: lists or arrays of integers, or `bytes`, of any lengths of at least 1.
        max_new_tokens: largest number of new tokens.
        temperature: 0 for the likeliest token each time; else logits are divided by it, and tokens are drawn.
        top_k: draw among this many likeliest tokens only; needs a temperature.
        top_p: draw among the likeliest tokens whose probabilities sum to this, between 0 and 1;
            needs a temperature.
        stop_tokens: a row ends after one of these.
        seed: seed of the draws. Row i of any call with this seed draws the same numbers.

    Returns:
        The new tokens of each prompt, with the stop token if there was one.

    Raises:
        ModelError: an argument is invalid, or the model keeps no cache.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
        >>> attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8)
        >>> sizes = {"vocab_size": 64, "hidden_size": 16, "num_layers": 2}
        >>> sizes |= {"attention": attention, "feed_forward": FeedForwardConfig(32)}
        >>> decoder = Decoder(DecoderConfig(family="llama", **sizes))
        >>> [len(tokens) for tokens in kd.generate(decoder, [[1, 2, 3], [4]], max_new_tokens=5)]
        [5, 5]

    Source: Holtzman et al. 2019, arXiv:1904.09751 (nucleus sampling).
    """
    rows = _checked_prompts(prompts)
    max_new_tokens = check_int("max_new_tokens", max_new_tokens, 1, 2**30, example=64)
    stops = _checked_stops(stop_tokens)
    sampling, factors = _checked_sampling(temperature, top_k, top_p)
    seed = check_int("seed", seed, 0, 2**32 - 1, example=0)
    if not isinstance(model, Model):
        raise argument_error("model", model, "a `keras_dist.Model`")
    _check_tokens(model, rows)
    _check_positions(model, max(map(len, rows)), max_new_tokens)
    built = model._with_weights()
    run = _Run(built, rows, max_new_tokens, sampling)
    padded = np.pad(np.array(stops, np.int32), (0, -len(stops) % _STOPS or _STOPS), constant_values=-1)
    try:
        tokens = run(padded, seed, factors)
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        given = f"{len(rows)} prompts, max_new_tokens={max_new_tokens}"
        fix = "ask for fewer new tokens, or pass fewer prompts in a call"
        raise ModelError("generate: not enough memory for the cache", given=given, fix=fix) from error
    return [_until_stop(row, max_new_tokens, stops) for row in tokens[: len(rows)]]


def _checked_prompts(prompts: Any) -> list[np.ndarray]:
    is_listed = isinstance(prompts, Sequence | np.ndarray | jax.Array) and not isinstance(prompts, str)
    try:
        rows = [np.asarray([*one] if isinstance(one, bytes) else one) for one in prompts] if is_listed else []
    except Exception:  # ragged lists, and arrays without dims
        rows = []
    wrong = [row for row in rows if row.ndim != 1 or not row.size or not np.issubdtype(row.dtype, np.integer)]
    if not rows or wrong:
        expected = "a list of prompts, each a list or an array of at least one token (an integer); encode text first"
        given = wrong[0] if wrong else prompts
        raise argument_error("prompts", given, expected, example=[[1, 2, 3]])
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


def _check_positions(model: Any, longest: int, new: int) -> None:
    """Check that a model with learned positions has enough of them."""
    positions = getattr(model, "max_positions", None)
    if positions is not None and longest + new > positions:
        summary = f"generate: the model has {positions} positions"
        given = f"a prompt of {longest} tokens, max_new_tokens={new}"
        raise ModelError(summary, given=given, fix=f"prompts and new tokens of at most {positions} tokens together")


@dataclasses.dataclass(frozen=True)
class _Sampling:
    """Options of drawing tokens from logits; a program is compiled for them."""

    is_greedy: bool
    top_k: int | None
    has_top_p: bool

    def tokens(self, logits: jax.Array, keys: jax.Array, factors: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Return a token (batch,) for logits (batch, vocabulary), each drawn with its key (traced)."""
        if self.is_greedy:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        temperature, top_p = factors
        logits = logits.astype(jnp.float32)
        logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, self.top_k)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.has_top_p:
            sorted_logits = -jnp.sort(-logits, axis=-1)
            before = jnp.cumsum(jax.nn.softmax(sorted_logits), axis=-1) - jax.nn.softmax(sorted_logits)
            is_kept = (before < top_p) | (jnp.arange(before.shape[-1]) == 0)
            least = jnp.min(jnp.where(is_kept, sorted_logits, jnp.inf), axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


def _checked_sampling(temperature: Any, top_k: Any, top_p: Any) -> tuple[_Sampling, tuple[np.float32, np.float32]]:
    """Return the options of the programs, and temperature and `top_p`, which they take as numbers."""
    temperature = check_number("temperature", temperature, 0, example=0.8)
    top_k = check_optional(check_int, "top_k", top_k, 1, example=50)
    top_p = check_optional(check_number, "top_p", top_p, above=0, high=1, example=0.9)
    drawn = [f"{name}={value}" for name, value in (("top_k", top_k), ("top_p", top_p)) if value is not None]
    if drawn and not temperature:
        given, fix = f"{', '.join(drawn)}, temperature=0", "temperature=1.0 draws; or leave them out"
        raise ModelError("generate: `top_k` and `top_p` need a temperature above 0", given=given, fix=fix)
    factors = np.float32(max(temperature, _LEAST)), np.float32(1 if top_p is None else top_p)
    return (_Sampling(False, top_k, top_p is not None) if temperature else _Sampling(True, None, False)), factors


class _Run:
    """The programs for prompts of some sizes, and their operands."""

    def __init__(self, built: BuiltModel, rows: list[np.ndarray], new_tokens: int, sampling: _Sampling) -> None:
        self._session, self._sampling, self._new_tokens = built, sampling, new_tokens
        lengths = np.array([len(row) for row in rows], np.int32)
        length = _padded_size(int(lengths.max()))
        multiple = rows_multiple({"tokens": np.zeros((len(rows), length), np.int32)}, built.distribution)
        count = multiple * 2 ** int(np.ceil(np.log2(-(-len(rows) // multiple))))
        self._slots = length + _padded_size(new_tokens)
        self._lengths = np.pad(lengths, (0, count - len(rows)), constant_values=1)
        self._is_added = np.arange(count) >= len(rows)
        self._tokens = np.zeros((count, length), np.int32)
        for place, row in enumerate(rows):
            self._tokens[place, : len(row)] = row

    def __call__(self, stops: np.ndarray, seed: int, factors: tuple[np.float32, np.float32]) -> np.ndarray:
        """Return the new tokens (rows, new tokens)."""
        place, built = self._session._placed, self._session
        seeds = np.arange(len(self._tokens), dtype=np.uint32), np.full(len(self._tokens), seed, np.uint32)
        shared = (factors, place(self._lengths), tuple(map(place, seeds)), place(self._is_added), place(stops))
        key = (self._tokens.shape[1], self._slots, self._sampling)
        first, cache = built.run_compiled(("prefill", *key), self._prefill, place(self._tokens), *shared)
        if self._new_tokens == 1:
            return np.asarray(first)[:, None]
        found = built.run_compiled(("decode", *key), self._decode, cache, first, np.int32(self._new_tokens), *shared)
        return np.asarray(found)

    def _prefill(
        self, module: Any, tokens: jax.Array, factors: Any, lengths: jax.Array, seeds: Any, *_: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Return the first new token of each row, and the cache of the prompts (traced)."""
        _check_keeps_cache(module)
        index = jnp.arange(tokens.shape[1])
        segments = (index < lengths[:, None]).astype(jnp.int32)
        inputs = {"tokens": tokens, "positions": jnp.broadcast_to(index, tokens.shape), "segments": segments}
        with call_context.entered(False, anew=True) as context:
            context.shards_of = lambda weight, dim: 1
            empty, before = module.empty_cache(len(tokens), self._slots), _values(module)
            logits, cache = _checked_result(module(inputs, cache=empty), tokens, empty)
        _check_unchanged(before, _values(module))
        last = _logits_at(lengths - 1, logits, context.projection_of(logits))
        return self._sampling.tokens(last, _keys(seeds, 0), factors), cache

    def _decode(
        self,
        module: Any,
        cache: PyTree,
        first: jax.Array,
        most: jax.Array,
        factors: Any,
        lengths: jax.Array,
        seeds: Any,
        is_added: jax.Array,
        stops: jax.Array,
    ) -> jax.Array:
        """Return all new tokens (traced)."""
        found = jnp.zeros((len(first), self._slots - self._tokens.shape[1]), jnp.int32).at[:, 0].set(first)

        def goes_on(carry: PyTree) -> jax.Array:
            number, _, _, _, has_ended = carry
            return (number < most) & ~jnp.all(has_ended)

        def turn(carry: PyTree) -> PyTree:
            number, cache, token, found, has_ended = carry
            positions = (lengths + number - 1)[:, None]
            inputs = {"tokens": token[:, None], "positions": positions, "segments": jnp.ones_like(positions)}
            logits, cache = module(inputs, cache=cache)
            token = self._sampling.tokens(logits[:, -1], _keys(seeds, number), factors)
            found = jax.lax.dynamic_update_slice(found, token[:, None], (0, number))
            return number + 1, cache, token, found, has_ended | jnp.isin(token, stops)

        has_ended = is_added | jnp.isin(first, stops)
        return jax.lax.while_loop(goes_on, turn, (jnp.int32(1), cache, first, found, has_ended))[3]


def _checked_result(result: Any, tokens: jax.Array, empty: PyTree) -> tuple[jax.Array, PyTree]:
    """Return the logits and the cache that a model returned, if they are as `CachedModel` requires."""
    is_pair = isinstance(result, tuple) and len(result) == 2  # pyright: ignore[reportUnknownArgumentType]
    logits, cache = cast("tuple[Any, Any]", result if is_pair else (np.zeros(()), None))
    if getattr(logits, "ndim", 0) != 3 or logits.shape[:2] != tokens.shape:
        given = f"{shorten(jax.tree.map(_type_of, result))} for tokens {tokens.shape}"
        fix = "return logits (batch, length, vocabulary) and the cache, see pretrained.CachedModel"
        raise ModelError("generate: the call of the model must return logits and the cache", given=given, fix=fix)
    found, expected = (str(jax.tree.map(_type_of, each)) for each in (cache, empty))
    arrays = [isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(empty)]
    if found != expected or not arrays or not all(arrays):
        given = f"{shorten(found)} after an empty cache {shorten(expected)}"
        fix = "return a cache of the structure, shapes and dtypes that empty_cache returns"
        raise ModelError("generate: the cache must be arrays whose shapes do not change", given=given, fix=fix)
    return logits, cache


def _type_of(leaf: Any) -> Any:
    return jax.typeof(leaf) if isinstance(leaf, np.ndarray | jax.Array) else type(leaf).__name__


def _values(module: Any) -> dict[str, Any]:
    state = nnx.to_flat_state(nnx.state(module)) if isinstance(module, nnx.Module) else ()
    return {"/".join(map(str, path)): variable.get_raw_value() for path, variable in state}


def _check_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [path for path, value in after.items() if value is not before.get(path)]
    if changed:
        fix = "keep in the cache what the next token needs"
        summary = "generate: the call of the model changes variables"
        raise ModelError(summary, given=shorten(", ".join(changed)), fix=fix)


def _logits_at(place: jax.Array, logits: jax.Array, projection: Projection | None) -> jax.Array:
    """Return the logits (batch, vocabulary) at one place of each row; from a projection without all others (traced)."""
    of = logits if projection is None else projection.inputs
    found = jnp.take_along_axis(of, place[:, None, None], axis=1)[:, 0]
    return found if projection is None else projection.logits(found)


def _keys(seeds: tuple[jax.Array, jax.Array], number: ArrayLike) -> jax.Array:
    """Return a key for each row, for a token of this number (traced)."""
    row, seed = seeds
    return jax.vmap(lambda row, seed: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), number))(
        row, seed
    )


def _padded_size(size: int) -> int:
    """Return the smallest size of programs that holds so many tokens."""
    return _SMALLEST * 2 ** max(0, int(np.ceil(np.log2(size / _SMALLEST))))


def _until_stop(row: np.ndarray, most: int, stops: Sequence[int]) -> list[int]:
    tokens = row[:most].tolist()
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens


def _check_keeps_cache(module: Any) -> None:
    if not isinstance(module, CachedModel):
        fix = "use a pretrained.Decoder, or give the module empty_cache(batch_size, slots) and `cache` in its call"
        raise ModelError("generate: the model keeps no cache of keys and values", given=shorten(module), fix=fix)
