"""Transformers of `memory_bank`."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

import keras_dist as kd
from keras_dist import layers

WIDTH, HEADS, VOCAB, LENGTH = 256, 8, 2048, 256
HEAD = WIDTH // HEADS


class Attention(nnx.Module):
    """Attention with grouped keys and values, causal or not."""

    def __init__(self, rngs, kv_heads=HEADS, is_causal=False):
        self.query = nnx.LinearGeneral(WIDTH, (HEADS, HEAD), rngs=rngs)
        self.key = nnx.LinearGeneral(WIDTH, (kv_heads, HEAD), rngs=rngs)
        self.value = nnx.LinearGeneral(WIDTH, (kv_heads, HEAD), rngs=rngs)
        self.out = nnx.LinearGeneral((HEADS, HEAD), WIDTH, axis=(-2, -1), rngs=rngs)
        self.is_causal = is_causal

    def __call__(self, x, memory=None):
        memory = x if memory is None else memory
        mixed = jax.nn.dot_product_attention(
            self.query(x), self.key(memory), self.value(memory), is_causal=self.is_causal
        )
        return self.out(mixed)


class Block(nnx.Module):
    """A block of a decoder as Llama's."""

    def __init__(self, rngs, kv_heads=HEADS, is_causal=True, is_gated=True):
        self.norm, self.second_norm = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = Attention(rngs, kv_heads, is_causal)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, use_bias=False, rngs=rngs)
        self.gate = nnx.Linear(WIDTH, 4 * WIDTH, use_bias=False, rngs=rngs) if is_gated else None
        self.down = nnx.Linear(4 * WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        hidden = self.second_norm(x)
        up = nnx.gelu(self.up(hidden)) if self.gate is None else nnx.silu(self.gate(hidden)) * self.up(hidden)
        return x + self.down(up)


class Decoder(nnx.Module):
    """Blocks in a list, or stacked and scanned."""

    def __init__(self, rngs, kv_heads=4, is_scanned=False, is_repeated=False, depth=4, vocab=VOCAB):
        self.embed = nnx.Embed(vocab, WIDTH, rngs=rngs)
        make = functools.partial(Block, kv_heads=kv_heads)
        self.is_scanned, self.is_repeated = is_scanned, is_repeated
        stacked = nnx.split_rngs(splits=depth)(nnx.vmap(lambda rngs: make(rngs)))
        self.blocks = stacked(rngs) if is_scanned else nnx.List([make(rngs) for _ in range(depth)])
        self.norm, self.head = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        call = nnx.remat(lambda block, x: block(x)) if self.is_repeated else lambda block, x: block(x)
        if self.is_scanned:
            x = nnx.scan(lambda x, block: call(block, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
        else:
            for block in self.blocks:
                x = call(block, x)
        return self.head(self.norm(x))


class Vit(nnx.Module):
    def __init__(self, rngs):
        self.patches = nnx.Conv(3, WIDTH, (8, 8), (8, 8), rngs=rngs)
        self.places = nnx.Param(jnp.zeros((1, 256, WIDTH)))
        self.blocks = nnx.List([Block(rngs, is_causal=False, is_gated=False) for _ in range(4)])
        self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, 1000, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, WIDTH) + self.places[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Dit(nnx.Module):
    """Blocks whose norms are modulated by a time."""

    def __init__(self, rngs):
        self.time = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.modulations = nnx.List([nnx.Linear(WIDTH, 6 * WIDTH, rngs=rngs) for _ in range(4)])
        self.attentions = nnx.List([Attention(rngs) for _ in range(4)])
        self.ups = nnx.List([nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs) for _ in range(4)])
        self.downs = nnx.List([nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs) for _ in range(4)])
        self.norm = nnx.LayerNorm(WIDTH, use_bias=False, use_scale=False, rngs=rngs)

    def __call__(self, x):
        time = nnx.silu(self.time(x.mean(1)))
        for modulation, attention, up, down in zip(
            self.modulations, self.attentions, self.ups, self.downs, strict=True
        ):
            a, b, c, d, e, f = (each[:, None] for each in jnp.split(modulation(time), 6, axis=-1))
            x = x + c * attention(self.norm(x) * (1 + a) + b)
            x = x + f * down(nnx.gelu(up(self.norm(x) * (1 + d) + e)))
        return x


class Experts(nnx.Module):
    """Top-2 experts with a capacity, by products with one-hot matrices."""

    def __init__(self, rngs, count=8):
        self.router = nnx.Linear(WIDTH, count, rngs=rngs)
        normal = nnx.initializers.lecun_normal()
        self.up = nnx.Param(normal(rngs.params(), (count, WIDTH, 4 * WIDTH)))
        self.down = nnx.Param(normal(rngs.params(), (count, 4 * WIDTH, WIDTH)))
        self.count = count

    def __call__(self, x):
        rows, length, _ = x.shape
        capacity = 2 * length // self.count
        chances = nnx.softmax(self.router(x))
        weights, chosen = jax.lax.top_k(chances, 2)
        picked = nnx.one_hot(chosen, self.count)
        place = jnp.cumsum(picked.reshape(rows, -1, self.count), 1).reshape(picked.shape) - 1
        slots = nnx.one_hot(place, capacity) * picked[..., None]
        combine = jnp.einsum("rtk,rtkec->rtec", weights, slots)
        inside = jnp.einsum("rtec,rtw->recw", (combine > 0).astype(x.dtype), x)
        hidden = nnx.gelu(jnp.einsum("recw,ewh->rech", inside, self.up[...]))
        return x + jnp.einsum("rtec,recw->rtw", combine, jnp.einsum("rech,ehw->recw", hidden, self.down[...]))


class EncoderDecoder(nnx.Module):
    """As T5: an encoder, and a decoder that attends to it."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.encoder = nnx.List([Block(rngs, is_causal=False) for _ in range(2)])
        self.decoder = nnx.List([Block(rngs) for _ in range(2)])
        self.across = nnx.List([Attention(rngs) for _ in range(2)])

    def __call__(self, tokens):
        memory = x = self.embed(tokens)
        for block in self.encoder:
            memory = block(memory)
        for block, across in zip(self.decoder, self.across, strict=True):
            x = block(x)
            x = x + across(x, memory)
        return self.embed.attend(x)


class Fused(nnx.Module):
    """As GPT-2: one kernel for queries, keys and values."""

    def __init__(self, rngs):
        self.norm, self.second_norm = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv, self.out = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        split = jnp.split(self.qkv(self.norm(x)), 3, axis=-1)
        query, key, value = (each.reshape(*x.shape[:2], HEADS, HEAD) for each in split)
        x = x + self.out(jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.second_norm(x))))


class Dropped(nnx.Module):
    """Blocks with dropout."""

    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs, is_causal=False, is_gated=False) for _ in range(3)])
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = self.drop(block(x))
        return x


def bert():
    inputs = kd.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCAB, WIDTH)(inputs)
    for index in range(3):
        y = layers.MultiHeadAttention(HEADS, HEAD, name=f"attention_{index}")(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
        y = layers.Dense(4 * WIDTH, activation="gelu", name=f"up_{index}")(x)
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH, name=f"down_{index}")(y))
    return kd.Model(inputs, layers.Dense(VOCAB, name="head")(x))
