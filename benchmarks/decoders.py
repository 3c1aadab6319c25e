"""Decoders of the size that is planned and not run here: 8, 70 and 405 billion parameters, unrolled and scanned."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder: grouped queries, RMSNorm, gated MLP, as in Llama 3."""

    layers: int
    embed: int
    mlp: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.embed // self.heads


DECODER_8B = Sizes(layers=48, embed=3584, mlp=10752, heads=28, kv_heads=7, vocab=128256)
DECODER_70B = Sizes(layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8, vocab=128256)
DECODER_405B = Sizes(layers=126, embed=16384, mlp=53248, heads=128, kv_heads=8, vocab=128256)
TINY = Sizes(layers=2, embed=64, mlp=192, heads=8, kv_heads=4, vocab=256)


class Attention(nnx.Module):
    """Causal attention with grouped queries."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        self.sizes = sizes
        options: dict[str, Any] = {"use_bias": False, "rngs": rngs}
        self.query = nnx.Linear(sizes.embed, sizes.heads * sizes.head_dim, **options)
        self.key = nnx.Linear(sizes.embed, sizes.kv_heads * sizes.head_dim, **options)
        self.value = nnx.Linear(sizes.embed, sizes.kv_heads * sizes.head_dim, **options)
        self.out = nnx.Linear(sizes.heads * sizes.head_dim, sizes.embed, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, sequence, embed) to the same."""
        sizes, (batch, length, _) = self.sizes, x.shape
        groups = sizes.heads // sizes.kv_heads
        query = self.query(x).reshape(batch, length, sizes.kv_heads, groups, sizes.head_dim)
        key = self.key(x).reshape(batch, length, sizes.kv_heads, sizes.head_dim)
        value = self.value(x).reshape(batch, length, sizes.kv_heads, sizes.head_dim)
        scores = jnp.einsum("bqkgh,bskh->bkgqs", query, key) * sizes.head_dim**-0.5
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
        return self.out(jnp.einsum("bkgqs,bskh->bqkgh", weights, value).reshape(batch, length, -1))


class Block(nnx.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        options: dict[str, Any] = {"use_bias": False, "rngs": rngs}
        self.norm1, self.norm2 = (nnx.RMSNorm(sizes.embed, rngs=rngs) for _ in range(2))
        self.attention = Attention(sizes, rngs)
        self.gate = nnx.Linear(sizes.embed, sizes.mlp, **options)
        self.up = nnx.Linear(sizes.embed, sizes.mlp, **options)
        self.down = nnx.Linear(sizes.mlp, sizes.embed, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, sequence, embed) to the same."""
        x = x + self.attention(self.norm1(x))
        normed = self.norm2(x)
        return x + self.down(nnx.silu(self.gate(normed)) * self.up(normed))


class Decoder(nnx.Module):
    """A decoder of tokens (batch, sequence) to logits (batch, sequence, vocab)."""

    def __init__(self, sizes: Sizes, *, scanned: bool = False, rngs: nnx.Rngs) -> None:
        self.scanned = scanned
        self.embed = nnx.Embed(sizes.vocab, sizes.embed, rngs=rngs)
        if scanned:
            make = nnx.vmap(lambda key: Block(sizes, nnx.Rngs(key)))
            self.blocks = make(jax.random.split(rngs.params(), sizes.layers))
        else:
            self.blocks = nnx.List([Block(sizes, rngs) for _ in range(sizes.layers)])
        self.norm = nnx.RMSNorm(sizes.embed, rngs=rngs)
        self.head = nnx.Linear(sizes.embed, sizes.vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of `tokens`; a scanned decoder keeps the inputs of its blocks alone for the backward pass."""
        x = self.embed(tokens)
        if self.scanned:
            step = nnx.remat(lambda x, block: block(x))
            x = nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
        else:
            for block in self.blocks:
                x = block(x)
        return self.head(self.norm(x))


def megatron(rules: Any, blocks: str = r"blocks/\d+", *, scanned: bool = False, axis: str = "model") -> Any:
    """The layout of Megatron-LM for these decoders, as rules; of grouped queries, of which there are few, none.

    Source: Shoeybi et al. 2019, arXiv:1909.08053.
    """
    first, block = ((None,), "blocks") if scanned else ((), blocks)
    rules[f"{block}/(attention/(query|key|value)|gate|up)/kernel"] = (*first, None, axis)
    rules[f"{block}/(attention/out|down)/kernel"] = (*first, axis, None)
    rules["embed/embedding"] = (axis, None)
    rules["head/kernel"] = (None, axis)
    return rules
