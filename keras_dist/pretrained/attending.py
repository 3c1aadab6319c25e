"""`attend`: scores, masks and sums of attention, by XLA, with every option. `kernels` has faster implementations."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Span(NamedTuple):
    """Positions and segments of queries or keys.

    Attributes:
        index: indices in the sequence, (length,): a query attends to keys with indices up to its own.
        segments: numbers of the documents in a row, (batch, length), or None; no query attends to another document.
        positions: positions, (batch, length), from which the window is measured, or None for the indices.
    """

    index: jax.Array
    segments: jax.Array | None = None
    positions: jax.Array | None = None


_NO_WINDOW = np.iinfo(np.int32).max
"""A window that is longer than any sequence."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Windows:
    """The window of a layer in a loop over layers, as an index into the windows of all layers.

    Attributes:
        sizes: the windows; None for all tokens.
        index: index of the window of the layer.
    """

    sizes: tuple[int | None, ...] = dataclasses.field(metadata={"static": True})
    index: jax.Array

    @property
    def size(self) -> jax.Array:
        """The window of the layer."""
        return jnp.array([_NO_WINDOW if size is None else size for size in self.sizes], "int32")[self.index]


class Scores(NamedTuple):
    """Options of the scores.

    Attributes:
        queries: places of the queries.
        keys: places of the keys.
        scale: factor of the scores.
        is_causal: whether a query attends only to keys up to its own.
        window: a query attends to the last `window` keys, and if not causal to the next; `Windows` where scanned layers
            differ; None for all.
        soft_cap: limit of the scores, or None.
        sinks: score of each head that no key has, (heads,), or None.
    """

    queries: Span
    keys: Span
    scale: float
    is_causal: bool = True
    window: int | Windows | None = None
    soft_cap: float | None = None
    sinks: jax.Array | None = None


def attend(query: jax.Array, key: jax.Array, value: jax.Array, options: Scores) -> jax.Array:
    """Return `softmax(soft_cap(query @ key * scale)) @ value` for each head, (batch, queries, heads, head_dim).

    `sinks` take their share of the softmax, and have no value.
    Keys and values are (batch, keys, kv_heads, head_dim), and groups of neighbouring heads share one.
    """
    batch, length, heads, size = query.shape
    scores = _scores(query, key, options)
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    mask = visible(options)
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores, jnp.finfo(scores.dtype).min)
    weights = _shares(scores, options.sinks).astype(value.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(batch, length, heads, size)


def largest_scores(query: jax.Array, key: jax.Array, options: Scores) -> jax.Array:
    """Return the largest score of each head before `soft_cap`, (heads,), among keys that are attended to."""
    scores, mask = _scores(query, key, options), visible(options)
    seen = scores if mask is None else jnp.where(mask[:, None, None], scores, -jnp.inf)
    return jnp.max(seen, (0, 3, 4)).reshape(-1)


def _scores(query: jax.Array, key: jax.Array, options: Scores) -> jax.Array:
    """Return the scores (batch, kv_heads, heads of each, queries, keys)."""
    batch, length, heads, size = query.shape
    grouped = query.reshape(batch, length, key.shape[2], heads // key.shape[2], size)
    return jnp.einsum("btkgd,bskd->bkgts", grouped, key, preferred_element_type=jnp.float32) * options.scale


def _shares(scores: jax.Array, sinks: jax.Array | None) -> jax.Array:
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sinks = sinks.astype(scores.dtype).reshape(*scores.shape[1:3], 1, 1)
    largest = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sinks))
    shares = jnp.exp(scores - largest)
    return shares / (shares.sum(axis=-1, keepdims=True) + jnp.exp(sinks - largest))


def visible(options: Scores) -> jax.Array | None:
    """Return where a query attends to a key, (batch or 1, queries, keys); None if everywhere."""
    queries, keys, window = options.queries, options.keys, options.window
    masks: list[jax.Array] = []
    if options.is_causal:
        masks.append((queries.index[:, None] >= keys.index[None, :])[None])
    if queries.segments is not None and keys.segments is not None:
        masks.append(queries.segments[:, :, None] == keys.segments[:, None, :])
    if window is not None:
        window = window.size if isinstance(window, Windows) else window
        near, far = (span.index[None] if span.positions is None else span.positions for span in (queries, keys))
        distance = near[:, :, None] - far[:, None, :]
        masks.append((distance if options.is_causal else jnp.abs(distance)) < window)
    mask = None
    for each in masks:
        mask = each if mask is None else mask & each
    return mask
