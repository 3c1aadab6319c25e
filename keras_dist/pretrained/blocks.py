"""The blocks of a network: a list of them, or one block with stacked weights in a loop.

Layers of a network may differ in their window and in their rotary embeddings. In a loop these are indices into the
distinct windows and angles. A loop without a cache may be a pipeline, see `layers.Stack`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.remat_scope import RematScope
from keras_dist.layers.base.shape_calls import build_stacked
from keras_dist.layers.base.stacked_layers import scan_layers
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.pretrained.attending import Span, Windows
from keras_dist.pretrained.block import Block
from keras_dist.pretrained.cache import Cache, Slots
from keras_dist.pretrained.config import NetworkConfig, Rotary
from keras_dist.pretrained.rotary import Angles, angles


def blocks(
    config: NetworkConfig, is_causal: bool, scan: bool, remat: bool, initializer: Identifier, dtype: Any
) -> nnx.Module:
    """Return a list of blocks, or one block for a stack.

    Raises:
        ModelError: blocks of a stack differ, because some have experts, or the first has no normalization.
    """
    has_experts = [config.has_experts(layer) for layer in range(config.num_layers)]
    if scan and len(set(has_experts)) > 1:
        layers = [layer for layer, each in enumerate(has_experts) if not each]
        given = f"scan=True, a network without experts in the layers {shorten(layers)}"
        raise ModelError("layers with experts and without cannot be stacked", given=given, fix="use scan=False")
    if scan and config.norm.skips_first and config.num_layers > 1:
        given = "scan=True, a network whose first layer has no normalization before its attention"
        raise ModelError("layers with other normalizations cannot be stacked", given=given, fix="use scan=False")
    with RematScope() if remat else contextlib.nullcontext():
        made = [
            Block(config, is_causal, initializer, each, layer == 0, dtype=dtype)
            for layer, each in enumerate(has_experts[: 1 if scan else None])
        ]
    return made[0] if scan else nnx.List(made)


def run_blocks(
    layers: Any, config: NetworkConfig, hidden: jax.Array, spans: tuple[Span, Span], cache: Cache | None = None
) -> tuple[jax.Array, Cache | None, jax.Array | None]:
    """Return the output of all blocks, the cache with new keys and values, and the sum of the tallies of experts.

    The cache has noted the places in `spans`.
    """
    if isinstance(layers, Block):
        return _run_stack(layers, config, hidden, spans, cache)
    start = 0 if cache is None else cache.index - hidden.shape[1]
    keys, values, tallies, positions, kinds = [], [], [], _positions(spans[0]), _kinds(config)
    turns = {rotary: angles(rotary, config, positions) for rotary in dict.fromkeys(rotary for _, rotary in kinds)}
    for number, (block, (window, rotary)) in enumerate(zip(layers, kinds, strict=True)):
        slots = None if cache is None else Slots(cache.keys[number], cache.values[number], jnp.asarray(start))
        hidden, slots, each = block(hidden, turns[rotary], *spans, window, slots)
        tallies += [] if each is None else [each]
        if slots is not None:
            keys.append(slots.keys)
            values.append(slots.values)
    cache = None if cache is None else cache._replace(keys=tuple(keys), values=tuple(values))
    return hidden, cache, sum(tallies[1:], tallies[0]) if tallies else None


def _run_stack(
    block: Block, config: NetworkConfig, hidden: jax.Array, spans: tuple[Span, Span], cache: Cache | None
) -> tuple[jax.Array, Cache | None, jax.Array | None]:
    if not block.built:
        build_stacked(block, (config.num_layers,), hidden.shape)
    start = 0 if cache is None else cache.index - hidden.shape[1]
    windows, turns, differing = _per_layer(config, _positions(spans[0]))
    has_rows = spans[0].positions is not None  # else the angles are equal for all rows
    rows = [(span.segments, span.positions) for span in spans], turns if has_rows else None

    def call(block: Block, carry: PyTree, turn: PyTree, rows: PyTree) -> PyTree:
        hidden, keys, values, tallies = carry
        slots = None if cache is None else Slots(keys, values, jnp.asarray(start), turn["layer"])
        own = [Span(span.index, *places) for span, places in zip(spans, rows[0], strict=True)]
        found = rows[1] if has_rows else turns
        if "rotary" in turn:
            found = [jax.tree.map(lambda *each: jax.lax.select_n(turn["rotary"], *each), *found)]
        window = Windows(windows, turn["window"]) if "window" in turn else windows[0]
        hidden, slots, each = block(hidden, found[0], *own, window, slots)
        tallies = None if each is None else tallies + each
        return (hidden, *((None, None) if slots is None else (slots.keys, slots.values)), tallies)

    experts = config.experts if config.has_experts(0) else None
    tallies = None if experts is None else jnp.zeros((len(hidden), 2, experts.num_experts))
    carry = (hidden, *((None, None) if cache is None else (cache.keys, cache.values)), tallies)
    turn = {"layer": jnp.arange(config.num_layers), **differing}
    hidden, keys, values, tallies = scan_layers(block, call, carry, turn, rows, pipelines=cache is None)
    return hidden, None if cache is None else cache._replace(keys=keys, values=values), tallies


def _per_layer(
    config: NetworkConfig, positions: jax.Array
) -> tuple[tuple[int | None, ...], list[Angles | None], dict[str, jax.Array]]:
    """Return the distinct windows, the distinct angles, and indices into these where layers differ."""
    windows, rotaries = zip(*_kinds(config), strict=True)
    distinct, kinds = list(dict.fromkeys(windows)), list(dict.fromkeys(rotaries))
    differing: dict[str, jax.Array] = {}
    if len(distinct) > 1:
        differing["window"] = jnp.array([distinct.index(window) for window in windows], "int32")
    found: list[Angles | None] = [angles(rotary, config, positions) for rotary in kinds]
    if len(kinds) > 1:
        differing["rotary"] = jnp.array([kinds.index(rotary) for rotary in rotaries], "int32")
        cosine, sine = next(each for each in found if each is not None)
        found = [(jnp.ones_like(cosine), jnp.zeros_like(sine)) if each is None else each for each in found]
    return tuple(distinct), found, differing


def _kinds(config: NetworkConfig) -> list[tuple[int | None, Rotary | None]]:
    """Return the window and the rotary embeddings of each layer."""
    return [config.attention.kind(layer) for layer in range(config.num_layers)]


def _positions(span: Span) -> jax.Array:
    return span.index[None] if span.positions is None else span.positions
