"""Log-sum-exp and label logits over a large vocabulary, without a float32 copy of the logits or without any logits.

Logits of 8,192 tokens over 150,000 entries are 5 GB in float32, and autodiff of `log_softmax` stores them twice. Given
logits, the backward pass reads them again in their dtype. Given a `Projection`, which computes logits, both passes
compute them chunk by chunk, which costs one more matrix multiplication. Shards of the vocabulary are a dim throughout,
so that devices exchange one number for each token, and one gradient of the inputs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

_TOKEN_DIMS = "abdefgijkl"


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
    """Logits `inputs @ kernel`, or `soft_cap * tanh(inputs @ kernel / soft_cap)`, that need not be computed.

    Attributes:
        inputs: (batch, ..., features).
        kernel: (features, vocabulary), or (vocabulary, features) if `vocabulary_dim` is 0.
        vocabulary_dim: the dim of the vocabulary, 0 or 1.
        soft_cap: limit of the logits; None for none.
        shards: number of shards of the vocabulary where the kernel is used.
    """

    inputs: jax.Array
    kernel: jax.Array
    vocabulary_dim: int = 1
    soft_cap: float | None = None
    shards: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the logits."""
        return (*self.inputs.shape[:-1], self.kernel.shape[self.vocabulary_dim])

    def logits(self, inputs: jax.Array) -> jax.Array:
        """Return the logits of other inputs (..., features)."""
        logits = jnp.matmul(inputs, self.kernel if self.vocabulary_dim else self.kernel.T)
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)

    @property
    def shard_size(self) -> int:
        """Size of the vocabulary on one device."""
        return self.shape[-1] // self.shards


def statistics(logits: jax.Array | Projection, labels: jax.Array, chunk_size: int) -> tuple[jax.Array, jax.Array]:
    """Return `logsumexp(logits)` and `logits[label]` for each token, float32; see `CausalLM` for `chunk_size`."""
    if not isinstance(logits, Projection):
        return _of_logits(logits, labels)
    chunks = _Chunks(logits.vocabulary_dim, logits.soft_cap, logits.shards, logits.shard_size, chunk_size)
    return _of_projection(chunks, logits.inputs, logits.kernel, labels)


@jax.custom_vjp
def _of_logits(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = logits.astype(_wide(logits))
    return jax.nn.logsumexp(wide, axis=-1), jnp.sum(jnp.where(_one_hot(logits, labels), wide, 0), axis=-1)


def _logits_forward(logits: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
    found = _of_logits(logits, labels)
    return found, (logits, labels, found[0])


def _logits_backward(saved: Any, gradients: Any) -> tuple[jax.Array, None]:
    logits, labels, total = saved
    of_total, of_label = (gradient[..., None] for gradient in gradients)
    gradient = of_total * jnp.exp(logits.astype(_wide(logits)) - total[..., None])
    return (gradient + jnp.where(_one_hot(logits, labels), of_label, 0)).astype(logits.dtype), None


_of_logits.defvjp(_logits_forward, _logits_backward)


def _one_hot(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]


def _wide(array: jax.Array) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """Chunks of a kernel: each has `columns` entries of every shard, the last one fewer."""

    vocabulary_dim: int
    soft_cap: float | None
    shards: int
    shard_size: int
    chunk_size: int

    @functools.cached_property
    def count(self) -> int:
        """The number of chunks, with little padding."""
        least = -(-self.shard_size // self.chunk_size)
        return min(range(least, 2 * least), key=lambda count: -self.shard_size % count)

    @property
    def columns(self) -> int:
        """The number of entries of a shard in a chunk."""
        return -(-self.shard_size // self.count)

    @property
    def chunk_dims(self) -> str:
        """The dims of a chunk: h features, m shards, c columns."""
        return "hmc" if self.vocabulary_dim else "mch"

    def split(self, kernel: jax.Array) -> jax.Array:
        """Return the kernel with dims (shards, chunks, columns) in place of the vocabulary."""
        at, shape = self.vocabulary_dim, list(kernel.shape)
        kernel = kernel.reshape([*shape[:at], self.shards, self.shard_size, *shape[at + 1 :]])
        added = self.count * self.columns - self.shard_size
        if added:
            kernel = jnp.pad(kernel, [(0, added if dim == at + 1 else 0) for dim in range(3)])
        return kernel.reshape([*shape[:at], self.shards, self.count, self.columns, *shape[at + 1 :]])

    def joined(self, split: jax.Array) -> jax.Array:
        """Invert `split`."""
        at, shape = self.vocabulary_dim, list(split.shape)
        joined = split.reshape([*shape[: at + 1], self.count * self.columns, *shape[at + 3 :]])
        joined = jax.lax.slice_in_dim(joined, 0, self.shard_size, axis=at + 1)
        return joined.reshape([*shape[:at], self.shards * self.shard_size, *shape[at + 3 :]])

    def chunk(self, split: jax.Array, index: jax.Array) -> jax.Array:
        """Return a chunk of a split kernel."""
        return jax.lax.dynamic_index_in_dim(split, index, self.vocabulary_dim + 1, keepdims=False)

    def put(self, split: jax.Array, chunk: jax.Array, index: jax.Array) -> jax.Array:
        """Return a split kernel with a chunk replaced."""
        return jax.lax.dynamic_update_index_in_dim(split, chunk, index, self.vocabulary_dim + 1)

    def logits(self, inputs: jax.Array, chunk: jax.Array, index: jax.Array) -> jax.Array:
        """Return the logits (..., shards, columns) of a chunk; -inf in the padding."""
        dims = _TOKEN_DIMS[: inputs.ndim - 1]
        logits = _product(f"{dims}h,{self.chunk_dims}->{dims}mc", inputs, chunk)
        if self.soft_cap is not None:
            logits = self.soft_cap * jnp.tanh(logits / self.soft_cap)
        return jnp.where(self._place(index) < self.shard_size, logits, -jnp.inf)

    def one_hot(self, labels: jax.Array, index: jax.Array) -> jax.Array:
        """Return where a chunk has the label of a token (..., shards, columns)."""
        shard, place = jnp.divmod(labels[..., None, None], self.shard_size)
        return (shard == jnp.arange(self.shards)[:, None]) & (place == self._place(index))

    def slope(self, logits: jax.Array) -> jax.Array | float:
        """Return the derivative of capped logits."""
        return 1.0 if self.soft_cap is None else 1 - jnp.square(jnp.maximum(logits / self.soft_cap, -1))

    def _place(self, index: jax.Array) -> jax.Array:
        return index * self.columns + jnp.arange(self.columns)


def _product(dims: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(dims, left, right, preferred_element_type=_wide(left))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_projection(
    chunks: _Chunks, inputs: jax.Array, kernel: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    split = chunks.split(kernel)

    def body(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        largest, total, picked = carry
        logits = chunks.logits(inputs, chunks.chunk(split, index), index)
        above = jnp.maximum(largest, jnp.max(logits, axis=-1))
        total = total * jnp.exp(largest - above) + jnp.sum(jnp.exp(logits - above[..., None]), axis=-1)
        picked = picked + jnp.sum(jnp.where(chunks.one_hot(labels, index), logits, 0), axis=-1)
        return above, total, picked

    zeros = jnp.zeros((*labels.shape, chunks.shards), _wide(inputs))
    largest, total, picked = jax.lax.fori_loop(0, chunks.count, body, (zeros - jnp.inf, zeros, zeros))
    return jax.nn.logsumexp(largest + jnp.log(total), axis=-1), jnp.sum(picked, axis=-1)


def _projection_forward(chunks: _Chunks, inputs: jax.Array, kernel: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
    found: Any = _of_projection(chunks, inputs, kernel, labels)
    return found, (inputs, kernel, labels, found[0])


def _projection_backward(chunks: _Chunks, saved: Any, gradients: Any) -> tuple[jax.Array, jax.Array, None]:
    inputs, kernel, labels, total = saved
    of_total, of_label = (gradient[..., None, None] for gradient in gradients)
    split, dims = chunks.split(kernel), _TOKEN_DIMS[: inputs.ndim - 1]

    def body(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        of_inputs, of_kernel = carry
        chunk = chunks.chunk(split, index)
        logits = chunks.logits(inputs, chunk, index)
        gradient = of_total * jnp.exp(logits - total[..., None, None])
        gradient = gradient + jnp.where(chunks.one_hot(labels, index), of_label, 0)
        gradient = (gradient * chunks.slope(logits)).astype(inputs.dtype)
        of_inputs = of_inputs + _product(f"{dims}mc,{chunks.chunk_dims}->{dims}mh", gradient, chunk)
        of_chunk = jnp.einsum(f"{dims}mc,{dims}h->{chunks.chunk_dims}", gradient, inputs)
        return of_inputs, chunks.put(of_kernel, of_chunk, index)

    zeros = jnp.zeros((*labels.shape, chunks.shards, inputs.shape[-1]), _wide(inputs))
    of_inputs, of_kernel = jax.lax.fori_loop(0, chunks.count, body, (zeros, jnp.zeros_like(split)))
    return jnp.sum(of_inputs, axis=-2).astype(inputs.dtype), chunks.joined(of_kernel), None


_of_projection.defvjp(_projection_forward, _projection_backward)
