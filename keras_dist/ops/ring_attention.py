"""Ring attention: blocks of keys and values pass around the mesh axis of a sequence, and no device holds all of them.

Softmax is accumulated block by block, as in flash attention. The backward pass sends the blocks around once more, with
their gradients, instead of keeping them. The `shard_map` is over the sequence axis alone: XLA shards rows and heads as
around it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from keras_dist._support.types import PyTree
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.tracing import may_use_kernels, note_kernel, traced_distribution
from keras_dist.errors import ModelError

Visible = Callable[[Any, Any], jax.Array | None]
"""Return where queries attend to keys, (batch or 1, queries, keys), from what is known of each; None if everywhere."""


_LOWEST = -0.7 * float(jnp.finfo(jnp.float32).max)
"""Score of a masked key, as in `jax.nn.dot_product_attention`: a query without any key gets the mean of all values."""


@dataclasses.dataclass(frozen=True)
class RingOptions:
    """Options of the scores of `Ring.attend`.

    Attributes:
        scale: factor of the scores.
        visible: mask of a block, from slices of `queries` and `keys`.
        queries: arrays (..., queries), such as indices and segments.
        keys: arrays (..., keys).
        masks: further masks that broadcast to (batch, heads, queries, keys).
        soft_cap: limit of the scores, or None.
    """

    scale: float
    visible: Visible
    queries: PyTree
    keys: PyTree
    masks: Sequence[jax.Array] = ()
    soft_cap: float | None = None


def ring_for(implementation: str, query: jax.Array, key: jax.Array, problems: Sequence[str] = ()) -> Ring | None:
    """Return the ring that computes this attention, or None; with `"auto"`, where the strategy has a sequence axis.

    Args:
        implementation: `"ring"`, `"auto"`, or the name of an implementation without a ring.
        query: (batch, queries, heads, size).
        key: (batch, keys, heads, size).
        problems: reasons for which the caller cannot use a ring.

    Raises:
        ModelError: the implementation is `"ring"`, and there is a reason for which it cannot be used.
    """
    if implementation not in ("ring", "auto") or not may_use_kernels():
        return None
    distribution = traced_distribution()
    axis = None if distribution is None else distribution.sequence_axis
    if distribution is None or axis is None:
        if implementation == "ring":
            given = "no sequence_axis, a layer outside of a model, or rows that the mesh does not divide"
            raise _cannot(given)
        return None
    size = distribution.device_mesh.axis_size(axis)
    found = [
        *(
            f"{size} devices along {axis!r} do not divide {array.shape[1]} {name}"
            for name, array in (("queries", query), ("keys", key))
            if array.shape[1] % size
        ),
        *(["it is called inside of a shard_map"] if jax.sharding.get_abstract_mesh().manual_axes else []),
        *problems,
    ]
    if found and implementation == "ring":
        raise _cannot("; ".join(found))
    if found:
        note_kernel(f"attention by XLA, which gathers keys and values over {axis}: {'; '.join(found)}")
        return None
    note_kernel(f"attention in a ring over {axis}")
    return Ring(distribution.device_mesh, axis)


def _cannot(given: str) -> ModelError:
    fix = 'implementation="auto" uses it where it can, and XLA elsewhere'
    return ModelError("attention in a ring cannot be used here", given=given, fix=fix)


@dataclasses.dataclass(frozen=True)
class Ring:
    """The devices along a mesh axis over which positions are sharded."""

    mesh: DeviceMesh
    axis: str

    def attend(self, query: jax.Array, key: jax.Array, value: jax.Array, options: RingOptions) -> jax.Array:
        """Return `softmax(soft_cap(query @ key * scale)) @ value` for each head.

        Args:
            query: (batch, queries, heads, size).
            key: (batch, keys, kv_heads, size); groups of neighbouring heads share one.
            value: like `key`.
            options: options of the scores.
        """
        blocks = _Blocks(self.axis, self.mesh.axis_size(self.axis), options.scale, options.visible, options.soft_cap)
        positions = PartitionSpec(None, self.axis)
        queries = jax.tree.map(lambda each: PartitionSpec(*[None] * (jnp.ndim(each) - 1), self.axis), options.queries)
        masks = [PartitionSpec(None, None, self.axis if mask.shape[2] > 1 else None) for mask in options.masks]
        attended = jax.shard_map(
            blocks.attended,
            mesh=self.mesh.backend_mesh,
            axis_names={self.axis},
            in_specs=(PartitionSpec(self.axis), positions, positions, positions, queries, PartitionSpec(), masks),
            out_specs=positions,
            check_vma=False,
        )
        places = jnp.arange(blocks.size)  # a device's own place: XLA cannot shard `axis_index` beside other axes
        return attended(places, query, key, value, options.queries, options.keys, list(options.masks))


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Attention of one device's queries to all blocks; scores are (batch, kv_heads, group, queries, keys)."""

    axis: str
    size: int
    scale: float
    visible: Visible
    soft_cap: float | None

    def attended(self, place: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, *known: Any) -> jax.Array:
        """Return the outputs for the queries `q`, given this device's block of keys and values."""
        batch, length, heads, width = q.shape
        grouped = q.reshape(batch, length, k.shape[2], heads // k.shape[2], width)
        call = jax.custom_vjp(lambda *arrays: self._forward(*arrays)[0])
        call.defvjp(self._forward, self._backward)
        return call(grouped, k, v, place[0], *known).reshape(q.shape)

    def _forward(self, q: jax.Array, k: jax.Array, v: jax.Array, *known: Any) -> tuple[jax.Array, Any]:
        def accumulate(carried: tuple[jax.Array, ...], turn: Any) -> tuple[jax.Array, ...]:
            k, v, highest, total, outputs = carried
            scores = self._scores(q, k, turn, *known)
            peak = jnp.maximum(highest, scores.max(-1))
            weights, factor = jnp.exp(scores - peak[..., None]), jnp.exp(highest - peak)
            added = jnp.einsum("bkgts,bskd->bkgtd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return k, v, peak, total * factor + weights.sum(-1), outputs * factor[..., None] + added

        batch, length, heads, group, width = q.shape
        shape = batch, heads, group, length
        start = accumulate((k, v, jnp.full(shape, _LOWEST), jnp.zeros(shape), jnp.zeros((*shape, width))), 0)
        _, _, highest, total, outputs = self._around(accumulate, start, 2)
        outputs = (outputs / total[..., None]).transpose(0, 3, 1, 2, 4).astype(q.dtype)
        return outputs, (q, k, v, outputs, highest, total, known)

    def _backward(self, kept: Any, seed: jax.Array) -> tuple[Any, ...]:
        q, k, v, outputs, highest, total, known = kept
        means = jnp.einsum("btkgd,btkgd->bkgt", seed, outputs, preferred_element_type=jnp.float32)

        def product(q: jax.Array, k: jax.Array, v: jax.Array, turn: Any) -> jax.Array:
            """Return a number with the gradients of one block; `means` stands for the gradient of the sums."""
            weights = jnp.exp(self._scores(q, k, turn, *known) - highest[..., None]) / total[..., None]
            products = jnp.einsum("btkgd,bskd->bkgts", seed, v, preferred_element_type=jnp.float32)
            return (weights * (products - means[..., None])).sum()

        def accumulate(carried: tuple[jax.Array, ...], turn: Any) -> tuple[jax.Array, ...]:
            k, v, *sums = carried
            added = jax.grad(product, argnums=(1, 2, 0))(q, k, v, turn)
            return k, v, *(total + one.astype(total.dtype) for total, one in zip(sums, added, strict=True))

        start = accumulate((k, v, *(jnp.zeros(each.shape, jnp.float32) for each in (k, v, q))), 0)
        _, _, *of_block, of_queries = self._around(accumulate, start, 4)
        of_keys, of_values = map(self._shifted, of_block)  # back to the device of the block
        return of_queries.astype(q.dtype), of_keys.astype(k.dtype), of_values.astype(v.dtype), *[None] * len(known)

    def _around(self, accumulate: Callable[..., Any], start: tuple[jax.Array, ...], moving: int) -> Any:
        """Return `start` after the other turns, before each of which its first arrays move to the next device."""

        def turn(carried: tuple[jax.Array, ...], number: jax.Array) -> tuple[Any, None]:
            return accumulate((*map(self._shifted, carried[:moving]), *carried[moving:]), number), None

        return jax.lax.scan(turn, start, jnp.arange(1, self.size))[0]

    def _shifted(self, array: jax.Array) -> jax.Array:
        return jax.lax.ppermute(array, self.axis, [(place, (place + 1) % self.size) for place in range(self.size)])

    def _scores(
        self, q: jax.Array, k: jax.Array, turn: Any, place: jax.Array, queries: PyTree, keys: PyTree, masks: Any
    ) -> jax.Array:
        """Return the scores of the block that is here in a turn, low where a query does not attend to a key."""
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=jnp.float32) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        length = k.shape[1]
        first = (place - turn) % self.size * length
        block = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=length, axis=-1)
        visible = self.visible(queries, jax.tree.map(block, keys))
        found = [] if visible is None else [visible[:, None, None]]
        for mask in masks:
            part = block(mask) if mask.shape[-1] > 1 else mask
            heads = (1, 1) if mask.shape[1] == 1 else scores.shape[1:3]
            found.append(part.reshape(len(part), *heads, *part.shape[2:]))
        for mask in found:
            scores = jnp.where(mask, scores, _LOWEST)
        return scores
