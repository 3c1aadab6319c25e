"""`Cache`: keys and values of tokens that a decoder has seen, so that the next token costs one step.

All rows of a batch write the same slots: the next free ones. Rows of prompts of different lengths are padded at the
right, with segment 0, and continue at their own position. Slots of padding are never attended to. So a step is one
`dynamic_update_slice` into a donated array, and heads and rows stay sharded as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError
from keras_dist.pretrained.attending import Span
from keras_dist.pretrained.config import NetworkConfig

_EMPTY = -1
"""The segment of slots without a token."""


class Slots(NamedTuple):
    """Keys and values in the slots of one layer, or of a stack of layers, of which `layer` is called.

    They are (batch, slots, kv_heads, head_dim), of a stack (batch, layers, slots, kv_heads, head_dim). `start` is the
    first free slot.
    """

    keys: jax.Array
    values: jax.Array
    start: jax.Array
    layer: jax.Array | None = None

    def written(self, key: jax.Array, value: jax.Array) -> Slots:
        """Return the slots with keys and values (batch, length, kv_heads, head_dim) in the free ones."""
        place = (0, self.start, 0, 0)
        if self.layer is not None:
            key, value, place = key[:, None], value[:, None], (0, self.layer, self.start, 0, 0)
        keys, values = (
            jax.lax.dynamic_update_slice(slots, new.astype(slots.dtype), place)
            for slots, new in ((self.keys, key), (self.values, value))
        )
        return self._replace(keys=keys, values=values)

    def read(self) -> tuple[jax.Array, jax.Array]:
        """Return the keys and values of the layer."""
        if self.layer is None:
            return self.keys, self.values
        keys, values = (
            jax.lax.dynamic_index_in_dim(slots, self.layer, 1, keepdims=False) for slots in (self.keys, self.values)
        )
        return keys, values


class Cache(NamedTuple):
    """Keys and values of the tokens that a decoder has seen.

    Attributes:
        keys: for each layer an array (batch, slots, kv_heads, head_dim); of scanned layers one array
            (batch, layers, slots, kv_heads, head_dim).
        values: like `keys`.
        index: number of slots that are in use, a scalar.
        positions: position of the token in each slot, (batch, slots).
        segments: segment of the token in each slot, (batch, slots); 0 for padding, -1 for free slots.
    """

    keys: tuple[jax.Array, ...] | jax.Array
    values: tuple[jax.Array, ...] | jax.Array
    index: jax.Array
    positions: jax.Array
    segments: jax.Array

    @classmethod
    def empty(cls, config: NetworkConfig, batch_size: int, slots: int, dtype: DTypeLike, scan: bool = False) -> Cache:
        """Return a cache of free slots for a decoder of this config."""
        heads = config.attention
        shape = (batch_size, slots, heads.num_kv_heads, heads.head_dim)
        if scan:
            stack = (batch_size, config.num_layers, *shape[1:])
            keys, values = (jnp.zeros(stack, dtype) for _ in range(2))
        else:
            keys, values = (tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers)) for _ in range(2))
        places = jnp.zeros((batch_size, slots), jnp.int32)
        return cls(keys, values, jnp.zeros((), jnp.int32), places, places + _EMPTY)

    def noted(self, positions: jax.Array, segments: jax.Array) -> Cache:
        """Return the cache with the places of new tokens (batch, length) noted, and their slots in use."""
        if positions.shape[1] > self.positions.shape[1]:
            given = f"{positions.shape[1]} tokens for {self.positions.shape[1]} slots"
            raise ModelError("the cache has too few slots", given=given, fix="model.empty_cache(rows, slots=...)")
        place = (0, self.index)
        return self._replace(
            index=self.index + positions.shape[1],
            positions=jax.lax.dynamic_update_slice(self.positions, positions, place),
            segments=jax.lax.dynamic_update_slice(self.segments, segments, place),
        )

    @property
    def span(self) -> Span:
        """The places of all slots."""
        return Span(jnp.arange(self.positions.shape[1]), self.segments, self.positions)
