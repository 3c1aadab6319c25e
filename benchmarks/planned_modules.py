"""Modules of Flax NNX that are planned and not run here: of kinds that want different layouts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.decoders import Attention, Sizes


class Experts(nnx.Module):
    """A mixture of experts, two for each token, dispatched with dense products.

    Source: Lepikhin et al. 2020, arXiv:2006.16668 (GShard).
    """

    def __init__(self, embed: int, mlp: int, experts: int, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal(batch_axis=0)
        self.router = nnx.Linear(embed, experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(init(rngs.params(), (experts, embed, mlp)))
        self.down = nnx.Param(init(rngs.params(), (experts, mlp, embed)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, sequence, embed) to the same; what exceeds an expert's capacity is left out."""
        length, experts = x.shape[1], self.up.shape[0]
        capacity = -(-5 * length // (2 * experts))
        chances = jax.nn.softmax(self.router(x))
        weights, chosen = jax.lax.top_k(chances, 2)
        picked = jax.nn.one_hot(chosen, experts)  # batch, sequence, choice, expert
        place = (jnp.cumsum(picked.sum(2), axis=1)[:, :, None] * picked - picked).astype(jnp.int32)
        slots = jax.nn.one_hot(place, capacity) * picked[..., None]
        combine = jnp.einsum("bsk,bskec->bsec", weights, slots)
        given = jnp.einsum("bsec,bsd->ebcd", slots.sum(2), x)
        hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", given, self.up[...]))
        return jnp.einsum("bsec,ebcd->bsd", combine, jnp.einsum("ebcf,efd->ebcd", hidden, self.down[...]))


class ExpertDecoder(nnx.Module):
    """A decoder with experts in the place of its MLPs."""

    def __init__(self, sizes: Sizes, experts: int, *, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(sizes.vocab, sizes.embed, rngs=rngs)
        self.attention = nnx.List([Attention(sizes, rngs) for _ in range(sizes.layers)])
        self.experts = nnx.List([Experts(sizes.embed, sizes.mlp, experts, rngs) for _ in range(sizes.layers)])
        self.norms = nnx.List([nnx.RMSNorm(sizes.embed, rngs=rngs) for _ in range(2 * sizes.layers + 1)])
        self.head = nnx.Linear(sizes.embed, sizes.vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of tokens (batch, sequence)."""
        x, norms = self.embed(tokens), iter(self.norms)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            x = x + attention(next(norms)(x))
            x = x + experts(next(norms)(x))
        return self.head(next(norms)(x))


class EncoderBlock(nnx.Module):
    """Attention and MLP with biases; `nnx.MultiHeadAttention` keeps heads in a dim of their own."""

    def __init__(self, embed: int, mlp: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = (nnx.LayerNorm(embed, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(heads, embed, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(embed, mlp, rngs=rngs), nnx.Linear(mlp, embed, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, sequence, embed) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    """A vision transformer: patches by a convolution, learned positions, the mean of all tokens."""

    def __init__(
        self, image: int, patch: int, embed: int, mlp: int, heads: int, layers: int, classes: int, *, rngs: nnx.Rngs
    ) -> None:
        self.patches = nnx.Conv(3, embed, (patch, patch), strides=(patch, patch), rngs=rngs)
        self.positions = nnx.Param(jnp.zeros(((image // patch) ** 2, embed)))
        self.blocks = nnx.List([EncoderBlock(embed, mlp, heads, rngs) for _ in range(layers)])
        self.norm, self.head = nnx.LayerNorm(embed, rngs=rngs), nnx.Linear(embed, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of images (batch, height, width, 3)."""
        x = self.patches(images)
        x = x.reshape(len(x), -1, x.shape[-1]) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class JoinedBlock(nnx.Module):
    """A block whose query, key and value come from one kernel, as in BERT's and GPT's fast implementations."""

    def __init__(self, embed: int, mlp: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.norm1, self.norm2 = (nnx.LayerNorm(embed, rngs=rngs) for _ in range(2))
        self.qkv, self.out = nnx.Linear(embed, 3 * embed, rngs=rngs), nnx.Linear(embed, embed, rngs=rngs)
        self.up, self.down = nnx.Linear(embed, mlp, rngs=rngs), nnx.Linear(mlp, embed, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, sequence, embed) to the same."""
        batch, length, embed = x.shape
        joined = self.qkv(x).reshape(batch, length, self.heads, 3, embed // self.heads)
        query, key, value = (joined[:, :, :, part] for part in range(3))
        weights = jax.nn.softmax(jnp.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5)
        mixed = jnp.einsum("bnqk,bknh->bqnh", weights, value).reshape(batch, length, embed)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(jax.nn.gelu(self.up(x))))


class TiedEncoder(nnx.Module):
    """An encoder that guesses masked tokens with its embedding, as BERT."""

    def __init__(
        self, vocab: int, length: int, embed: int, mlp: int, heads: int, layers: int, *, rngs: nnx.Rngs
    ) -> None:
        self.embed, self.positions = nnx.Embed(vocab, embed, rngs=rngs), nnx.Embed(length, embed, rngs=rngs)
        self.norm = nnx.LayerNorm(embed, rngs=rngs)
        self.blocks = nnx.List([JoinedBlock(embed, mlp, heads, rngs) for _ in range(layers)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of tokens (batch, sequence)."""
        x = self.norm(self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


class Mixer(nnx.Module):
    """MLPs along tokens and along channels in turns.

    Source: Tolstikhin et al. 2021, arXiv:2105.01601.
    """

    def __init__(
        self, tokens: int, embed: int, token_mlp: int, mlp: int, layers: int, classes: int, *, rngs: nnx.Rngs
    ) -> None:
        self.patches = nnx.Linear(3 * 16 * 16, embed, rngs=rngs)

        def linears(size: int, hidden: int) -> list[nnx.Linear]:
            return [nnx.Linear(size, hidden, rngs=rngs), nnx.Linear(hidden, size, rngs=rngs)]

        self.along_tokens = nnx.List([nnx.List(linears(tokens, token_mlp)) for _ in range(layers)])
        self.along_channels = nnx.List([nnx.List(linears(embed, mlp)) for _ in range(layers)])
        self.norms = nnx.List([nnx.LayerNorm(embed, rngs=rngs) for _ in range(2 * layers + 1)])
        self.head = nnx.Linear(embed, classes, rngs=rngs)

    def __call__(self, patches: jax.Array) -> jax.Array:
        """Logits of flat patches (batch, tokens, numbers)."""
        x, norms = self.patches(patches), iter(self.norms)
        for tokens, channels in zip(self.along_tokens, self.along_channels, strict=True):
            turned = next(norms)(x).swapaxes(1, 2)
            x = x + tokens[1](jax.nn.gelu(tokens[0](turned))).swapaxes(1, 2)
            x = x + channels[1](jax.nn.gelu(channels[0](next(norms)(x))))
        return self.head(next(norms)(x).mean(1))


class StateSpaceBlock(nnx.Module):
    """A state space model whose gate, inputs, `B`, `C` and steps come from one kernel; sequences in chunks.

    Source: Dao and Gu 2024, arXiv:2405.21060 (Mamba-2).
    """

    def __init__(self, embed: int, inner: int, state: int, heads: int, chunk: int, rngs: nnx.Rngs) -> None:
        self.sizes, self.chunk = (inner, state, heads), chunk
        self.norm = nnx.RMSNorm(embed, rngs=rngs)
        self.joined = nnx.Linear(embed, 2 * inner + 2 * state + heads, use_bias=False, rngs=rngs)
        mixed = inner + 2 * state
        self.conv = nnx.Conv(mixed, mixed, (4,), padding="CAUSAL", feature_group_count=mixed, rngs=rngs)
        self.log_decay, self.skip = nnx.Param(jnp.zeros(heads)), nnx.Param(jnp.ones(heads))
        self.out_norm = nnx.RMSNorm(inner, rngs=rngs)
        self.out = nnx.Linear(inner, embed, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, sequence, embed) to the same."""
        inner, state, heads = self.sizes
        gate, mixed, steps = jnp.split(self.joined(self.norm(x)), [inner, 2 * inner + 2 * state], axis=-1)
        values, keys, queries = jnp.split(jax.nn.silu(self.conv(mixed)), [inner, inner + state], axis=-1)
        values = values.reshape(*values.shape[:2], heads, inner // heads)
        steps = jax.nn.softplus(steps)
        decays = -jnp.exp(self.log_decay[...]) * steps
        mixed = self._scan(values * steps[..., None], keys, queries, decays) + values * self.skip[...][:, None]
        mixed = mixed.reshape(*x.shape[:2], inner)
        return x + self.out(self.out_norm(mixed * jax.nn.silu(gate)))

    def _scan(self, values: jax.Array, keys: jax.Array, queries: jax.Array, decays: jax.Array) -> jax.Array:
        """Chunk after chunk, with the state that the last one has left."""
        batch, length, heads, size = values.shape

        def chunks(array: jax.Array) -> jax.Array:
            return array.reshape(batch, length // self.chunk, self.chunk, *array.shape[2:]).swapaxes(0, 1)

        def one(carried: jax.Array, chunk: Any) -> tuple[jax.Array, jax.Array]:
            value, key, query, decay = chunk
            total = jnp.cumsum(decay, axis=1)  # batch, time, head
            between = total[:, :, None] - total[:, None]
            causal = jnp.tril(jnp.ones((self.chunk, self.chunk), bool))[..., None]
            kept = jnp.where(causal, jnp.exp(jnp.where(causal, between, 0)), 0)
            inside = jnp.einsum("bqn,bkn,bqkh,bkhp->bqhp", query, key, kept, value)
            before = jnp.einsum("bqn,bqh,bhpn->bqhp", query, jnp.exp(total), carried)
            left = jnp.exp(total[:, -1:] - total)
            added = jnp.einsum("bkn,bkh,bkhp->bhpn", key, left, value)
            return carried * jnp.exp(total[:, -1])[..., None, None] + added, inside + before

        start = jnp.zeros((batch, heads, size, keys.shape[-1]))
        _, found = jax.lax.scan(one, start, tuple(map(chunks, (values, keys, queries, decays))))
        return found.swapaxes(0, 1).reshape(values.shape)


class StateSpace(nnx.Module):
    """A language model of state space blocks."""

    def __init__(
        self, vocab: int, embed: int, inner: int, state: int, heads: int, chunk: int, layers: int, *, rngs: nnx.Rngs
    ) -> None:
        self.embed = nnx.Embed(vocab, embed, rngs=rngs)
        self.blocks = nnx.List([StateSpaceBlock(embed, inner, state, heads, chunk, rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(embed, rngs=rngs)
        self.head = nnx.Linear(embed, vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of tokens (batch, sequence)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Bottleneck(nnx.Module):
    """Three convolutions with batch norms and a shortcut."""

    def __init__(self, given: int, width: int, stride: int, rngs: nnx.Rngs) -> None:
        made = 4 * width
        kinds = ((given, width, 1, 1), (width, width, 3, stride), (width, made, 1, 1))
        self.convs = nnx.List([_conv(one, other, size, step, rngs) for one, other, size, step in kinds])
        self.norms = nnx.List([nnx.BatchNorm(kind[1], rngs=rngs) for kind in kinds])
        self.shortcut = _conv(given, made, 1, stride, rngs) if stride > 1 or given != made else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, height, width, channels) to the same, or half as high and wide."""
        kept = x if self.shortcut is None else self.shortcut(x)
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(jax.nn.relu(x) if index else x))
        return jax.nn.relu(x + kept)


class ResNet(nnx.Module):
    """A ResNet of bottlenecks."""

    def __init__(self, width: int, stages: Sequence[int], classes: int, *, rngs: nnx.Rngs) -> None:
        self.stem, self.norm = _conv(3, width, 7, 2, rngs), nnx.BatchNorm(width, rngs=rngs)
        blocks: list[Bottleneck] = []
        channels = width
        for stage, count in enumerate(stages):
            for index in range(count):
                wide = width * 2**stage
                blocks.append(Bottleneck(channels, wide, 2 if stage and not index else 1, rngs))
                channels = 4 * wide
        self.blocks, self.head = nnx.List(blocks), nnx.Linear(channels, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of images (batch, height, width, 3)."""
        x = nnx.max_pool(jax.nn.relu(self.norm(self.stem(images))), (3, 3), (2, 2), "SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class ConvPair(nnx.Module):
    """Two convolutions with group norms and a shortcut."""

    def __init__(self, given: int, made: int, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = (nnx.GroupNorm(size, num_groups=8, rngs=rngs) for size in (given, made))
        self.conv1, self.conv2 = _conv(given, made, 3, 1, rngs), _conv(made, made, 3, 1, rngs)
        self.shortcut = _conv(given, made, 1, 1, rngs) if given != made else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, height, width, given) to (batch, height, width, made)."""
        kept = x if self.shortcut is None else self.shortcut(x)
        x = self.conv1(jax.nn.silu(self.norm1(x)))
        return kept + self.conv2(jax.nn.silu(self.norm2(x)))


class UNet(nnx.Module):
    """Down and up again, with what was found on the way down joined on the way up; as denoisers of latents are."""

    def __init__(self, channels: Sequence[int], numbers: int, *, rngs: nnx.Rngs) -> None:
        below = [*itertools.pairwise(channels)]
        self.begin, self.end = _conv(numbers, channels[0], 3, 1, rngs), _conv(channels[0], numbers, 3, 1, rngs)
        self.down = nnx.List([ConvPair(one, one, rngs) for one, _ in below])
        self.halve = nnx.List([_conv(one, other, 3, 2, rngs) for one, other in below])
        self.middle = ConvPair(channels[-1], channels[-1], rngs)
        self.widen = nnx.List([_conv(other, one, 3, 1, rngs) for one, other in below])
        self.up = nnx.List([ConvPair(2 * one, one, rngs) for one, _ in below])

    def __call__(self, images: jax.Array) -> jax.Array:
        """`images` (batch, height, width, numbers) to the same."""
        x, kept = self.begin(images), list[jax.Array]()
        for pair, halve in zip(self.down, self.halve, strict=True):
            kept.append(pair(x))
            x = halve(kept[-1])
        x = self.middle(x)
        for pair, widen in list(zip(self.up, self.widen, strict=True))[::-1]:
            side = kept.pop()
            x = widen(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
            x = pair(jnp.concatenate([x, side], axis=-1))
        return self.end(x)


class Recommender(nnx.Module):
    """Tables of categories, products of all pairs of their rows, and MLPs.

    Source: Naumov et al. 2019, arXiv:1906.00091 (DLRM).
    """

    def __init__(self, tables: Sequence[int], embed: int, mlp: Sequence[int], *, rngs: nnx.Rngs) -> None:
        self.tables = nnx.List([nnx.Embed(rows, embed, rngs=rngs) for rows in tables])
        pairs = (len(tables) + 1) * len(tables) // 2
        self.bottom, self.top = _mlp((13, *mlp, embed), rngs), _mlp((pairs + embed, *mlp, 1), rngs)

    def __call__(self, inputs: dict[str, jax.Array]) -> jax.Array:
        """Logits (batch, 1) of `numbers` (batch, 13) and `categories` (batch, tables)."""
        x = inputs["numbers"]
        for layer in self.bottom:
            x = jax.nn.relu(layer(x))
        rows = [table(inputs["categories"][:, index]) for index, table in enumerate(self.tables)]
        features = jnp.stack([x, *rows], axis=1)
        first, second = jnp.triu_indices(features.shape[1], 1)
        x = jnp.concatenate([x, jnp.einsum("bid,bjd->bij", features, features)[:, first, second]], axis=-1)
        for index, layer in enumerate(self.top):
            x = layer(jax.nn.relu(x) if index else x)
        return x


def _conv(given: int, made: int, size: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(given, made, (size, size), strides=(stride, stride), use_bias=False, rngs=rngs)


def _mlp(sizes: Sequence[int], rngs: nnx.Rngs) -> nnx.List[nnx.Linear]:
    return nnx.List([nnx.Linear(one, other, rngs=rngs) for one, other in itertools.pairwise(sizes)])
