"""The two programs that generate tokens: one reads prompts and fills a cache, the other runs a loop on the devices.

The loop takes its number of turns as an operand: one call computes all tokens, and a stream calls it for each token.

Prompts are padded to sizes from a short list, so that few programs are compiled. Each row draws with its own key: its
tokens do not depend on the other rows, on padding or on the mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError, shorten
from keras_dist.losses.vocabulary import Projection
from keras_dist.training.uneven_rows import rows_multiple
from keras_dist.variables import call_context

_SMALLEST = 32
"""Prompts are padded to this number times a power of two."""
_SLOTS = 64
"""Slots of a cache are a multiple of this, or of a quarter of the largest power of two that they hold."""
_STOPS = 4
"""Stop tokens are padded to a multiple of this."""


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


@dataclasses.dataclass(frozen=True)
class Sampling:
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


def check_positions(model: Any, longest: int, new: int) -> None:
    """Check that a model with learned positions has enough of them."""
    positions = getattr(model, "max_positions", None)
    if positions is not None and longest + new > positions:
        summary = f"generate: the model has {positions} positions"
        given = f"a prompt of {longest} tokens, max_new_tokens={new}"
        raise ModelError(summary, given=given, fix=f"prompts and new tokens of at most {positions} tokens together")


class Network(Protocol):
    """A network with weights, or with their shapes: what runs the programs, or lowers them."""

    @property
    def distribution(self) -> Distribution:
        """Its distribution."""
        ...

    def placed(self, array: np.ndarray) -> Any:
        """Place an array: rows over the batch axis, if that divides them."""
        ...

    def run_compiled(
        self,
        key: Any,
        run: Callable[..., PyTree],
        *operands: PyTree,
        donated: Sequence[int] = (),
        layouts: Sequence[int | None] = (),
        title: str = "",
    ) -> PyTree:
        """Return `run(module, *operands)`, compiled once for each key, with a line that names it if it has a title.

        `donated` operands are consumed. `layouts` names for each result an operand that is sharded alike, or None.
        """
        ...


class Generation:
    """The programs for prompts of some sizes, and their operands."""

    def __init__(
        self, network: Network, rows: Sequence[np.ndarray], new_tokens: int, sampling: Sampling, shows: bool = False
    ) -> None:
        self._network, self._sampling, self._new_tokens, self._shows = network, sampling, new_tokens, shows
        lengths = np.array([len(row) for row in rows], np.int32)
        length = _SMALLEST * 2 ** max(0, int(np.ceil(np.log2(lengths.max() / _SMALLEST))))
        multiple = rows_multiple({"tokens": np.zeros((len(rows), length), np.int32)}, network.distribution)
        count = multiple * 2 ** int(np.ceil(np.log2(-(-len(rows) // multiple))))
        slots = length + new_tokens
        step = max(_SLOTS, 2 ** (slots.bit_length() - 3))
        self._slots = -(-slots // step) * step
        self._lengths = np.pad(lengths, (0, count - len(rows)), constant_values=1)
        self._is_added = np.arange(count) >= len(rows)
        self._tokens = np.zeros((count, length), np.int32)
        for place, row in enumerate(rows):
            if row.any():  # in a plan all are zeros, which take no memory until they are written
                self._tokens[place, : len(row)] = row

    def __call__(self, stops: Sequence[int], seed: int, factors: tuple[np.float32, np.float32]) -> PyTree:
        """Return the new tokens (rows, new tokens), and more columns of programs for more tokens."""
        shared = self._shared(stops, seed, factors)
        first, *state = self._first(shared)
        return first if self._new_tokens == 1 else self._continued(1, self._new_tokens, first, state, shared)[0]

    def stream(self, stops: Sequence[int], seed: int, factors: tuple[np.float32, np.float32]) -> Generator[np.ndarray]:
        """Yield a new token of each row (rows,) at a time; tokens of rows that have ended are arbitrary."""
        shared = self._shared(stops, seed, factors)
        token, *state = self._first(shared)
        yield np.asarray(token)
        for number in range(1, self._new_tokens):
            _, cache, token, has_ended = self._continued(number, number + 1, token, state, shared)
            state = [cache, has_ended]
            yield np.asarray(token)

    def _shared(self, stops: Sequence[int], seed: int, factors: tuple[np.float32, np.float32]) -> tuple[PyTree, ...]:
        """Return the operands that both programs take."""
        place = self._network.placed
        padded = np.pad(np.array(stops, np.int32), (0, -len(stops) % _STOPS or _STOPS), constant_values=-1)
        seeds = np.arange(len(self._tokens), dtype=np.uint32), np.full(len(self._tokens), seed, np.uint32)
        return factors, place(self._lengths), tuple(map(place, seeds)), place(self._is_added), place(padded)

    def _first(self, shared: tuple[PyTree, ...]) -> PyTree:
        """Return the first new token of each row, the cache, and whether rows have ended."""
        key, tokens = (*self._tokens.shape, self._slots, self._sampling), self._network.placed(self._tokens)
        title = self._titled(f"reads prompts of up to {tokens.shape[1]} tokens")
        return self._network.run_compiled(("prefill", *key), self._prefill, tokens, *shared, title=title)

    def _continued(
        self, number: int, until: int, token: PyTree, state: Sequence[PyTree], shared: tuple[PyTree, ...]
    ) -> PyTree:
        """Return `token` and those up to number `until`, the cache, the last token, and whether rows have ended."""
        key = ("decode", len(self._tokens), self._slots, self._sampling)
        operands = state[0], token, state[1], (np.int32(number), np.int32(until)), *shared
        title, layouts = self._titled("adds tokens"), (None, 0, 1, 2)
        return self._network.run_compiled(key, self._decode, *operands, donated=(0,), layouts=layouts, title=title)

    def _titled(self, task: str) -> str:
        sizes = f"batch {len(self._tokens)}, {self._slots} slots"
        return f"generate: the program that {task} ({sizes})" if self._shows else ""

    def _prefill(
        self,
        module: Any,
        tokens: jax.Array,
        factors: Any,
        lengths: jax.Array,
        seeds: Any,
        is_added: jax.Array,
        stops: jax.Array,
    ) -> tuple[jax.Array, PyTree, jax.Array]:
        """Return the first new token of each row, the cache of the prompts, and whether rows have ended (traced)."""
        _check_keeps_cache(module)
        index, ends = jnp.arange(tokens.shape[1]), lengths[:, None]
        segments = (index < ends).astype(jnp.int32)
        inputs = {"tokens": tokens, "positions": jnp.minimum(index, ends), "segments": segments}  # sharded as the rows
        with call_context.entered(False, anew=True) as context:
            context.shards_of = lambda weight, dim: 1
            empty, before = module.empty_cache(len(tokens), self._slots), _values(module)
            logits, cache = _checked_result(module(inputs, cache=empty), tokens, empty)
        _check_unchanged(before, _values(module))
        last = _logits_at(lengths - 1, logits, context.projection_of(logits))
        first = self._sampling.tokens(last, _keys(seeds, 0), factors)
        return first, cache, is_added | jnp.isin(first, stops)

    def _decode(
        self,
        module: Any,
        cache: PyTree,
        token: jax.Array,
        has_ended: jax.Array,
        bounds: tuple[jax.Array, jax.Array],
        factors: Any,
        lengths: jax.Array,
        seeds: Any,
        is_added: jax.Array,
        stops: jax.Array,
    ) -> tuple[jax.Array, PyTree, jax.Array, jax.Array]:
        """Return `token` and those after it, the cache in the memory of the one given, and the state (traced)."""
        start, until = bounds
        found = jnp.zeros((len(token), self._slots), jnp.int32).at[:, 0].set(token)

        def goes_on(carry: PyTree) -> jax.Array:
            number, _, _, _, has_ended = carry
            return (number < until) & ~jnp.all(has_ended)

        def turn(carry: PyTree) -> PyTree:
            number, cache, token, found, has_ended = carry
            positions = (lengths + number - 1)[:, None]
            inputs = {"tokens": token[:, None], "positions": positions, "segments": jnp.ones_like(positions)}
            logits, cache = module(inputs, cache=cache)
            token = self._sampling.tokens(logits[:, -1], _keys(seeds, number), factors)
            found = jax.lax.dynamic_update_slice(found, token[:, None], (0, number - start + 1))
            return number + 1, cache, token, found, has_ended | jnp.isin(token, stops)

        carry = start, cache, token, found, has_ended
        _, cache, token, found, has_ended = jax.lax.while_loop(goes_on, turn, carry)
        return found, cache, token, has_ended


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


def _check_keeps_cache(module: Any) -> None:
    if not isinstance(module, CachedModel):
        fix = "use a pretrained.Decoder, or give the module empty_cache(batch_size, slots) and `cache` in its call"
        raise ModelError("generate: the model keeps no cache of keys and values", given=shorten(module), fix=fix)
