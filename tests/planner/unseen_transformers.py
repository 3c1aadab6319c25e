"""Transformers and their relatives, with good layouts, for `unseen_mistakes`."""

import jax
import jax.numpy as jnp
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from tests.planner.other_mistakes import M, Rules

W, H, L = 64, 256, 16


def line(i, o, rngs):
    return nnx.Linear(i, o, use_bias=False, rngs=rngs)


def many(n, make):
    return nnx.List([make() for _ in range(n)])


class Heads(nnx.Module):
    def __init__(self, rngs, kv=8):
        self.query = nnx.LinearGeneral(W, (8, 8), use_bias=False, rngs=rngs)
        self.key, self.value = (nnx.LinearGeneral(W, (kv, 8), use_bias=False, rngs=rngs) for _ in range(2))
        self.merge = nnx.LinearGeneral((8, 8), W, axis=(-2, -1), use_bias=False, rngs=rngs)

    def __call__(self, x, memory=None):
        memory = x if memory is None else memory
        return self.merge(jax.nn.dot_product_attention(self.query(x), self.key(memory), self.value(memory)))


HEADS: Rules = {".*/(query|key|value)/kernel": (None, M, None), ".*/merge/kernel": (M, None, None)}


class Conformer(nnx.Module):
    def __init__(self, rngs):
        self.ff_in, self.ff_out = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))
        self.attention = Heads(rngs)
        self.point_in, self.point_out = line(W, H, rngs), line(H, W, rngs)
        self.depth = nnx.Conv(H, H, (5,), feature_group_count=H, use_bias=False, rngs=rngs)
        self.norm = nnx.LayerNorm(W, rngs=rngs)

    def __call__(self, x):
        x = x + 0.5 * self.ff_out[0](nnx.silu(self.ff_in[0](x)))
        x = x + self.attention(self.norm(x))
        x = x + self.point_out(nnx.silu(self.depth(nnx.silu(self.point_in(x)))))
        return x + 0.5 * self.ff_out[1](nnx.silu(self.ff_in[1](x)))


CONFORMER: Rules = HEADS | {
    "ff_in/./kernel": (None, M),
    "ff_out/./kernel": (M, None),
    "point_in/kernel": (None, M),
    "depth/kernel": (None, None, M),
    "point_out/kernel": (M, None),
}


class Gmlp(nnx.Module):
    def __init__(self, rngs):
        self.u, self.v = (many(3, lambda: line(W, H, rngs)) for _ in range(2))
        self.out = many(3, lambda: line(H, W, rngs))
        self.gates = many(3, lambda: line(L, L, rngs))

    def __call__(self, x):
        for u, v, g, o in zip(self.u, self.v, self.gates, self.out, strict=True):
            x = x + o(nnx.gelu(u(x)) * jnp.swapaxes(g(jnp.swapaxes(v(x), 1, 2)), 1, 2))
        return x


GMLP: Rules = {"[uv]/./kernel": (None, M), "out/./kernel": (M, None)}


class LinearAttention(nnx.Module):
    def __init__(self, rngs):
        self.query, self.key, self.value = (nnx.LinearGeneral(W, (8, 16), use_bias=False, rngs=rngs) for _ in range(3))
        self.merge = nnx.LinearGeneral((8, 16), W, axis=(-2, -1), use_bias=False, rngs=rngs)

    def __call__(self, x):
        q, k, v = nnx.elu(self.query(x)) + 1, nnx.elu(self.key(x)) + 1, self.value(x)
        kv = jnp.einsum("blhd,blhe->bhde", k, v)
        norm = jnp.einsum("blhd,bhd->blh", q, k.sum(1))
        return x + self.merge(jnp.einsum("blhd,bhde->blhe", q, kv) / norm[..., None])


class Performer(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(1000, W, rngs=rngs)
        self.layers = many(3, lambda: LinearAttention(rngs))
        self.scores = line(W, 1000, rngs)

    def __call__(self, t):
        x = self.words(t)
        for layer in self.layers:
            x = layer(x)
        return self.scores(x)


PERFORMER: Rules = HEADS | {"words/embedding": (M, None), "scores/kernel": (None, M)}


class Retention(nnx.Module):
    def __init__(self, rngs):
        self.query, self.key, self.value, self.gate = (line(W, 2 * W, rngs) for _ in range(4))
        self.back = line(2 * W, W, rngs)
        self.decay = nnx.Param(jnp.full((8,), 0.9))

    def __call__(self, x):
        q, k, v = (p(x).reshape(*x.shape[:2], 8, 16) for p in (self.query, self.key, self.value))
        t = jnp.arange(x.shape[1])
        mask = jnp.where(t[:, None] >= t, self.decay[...][:, None, None] ** jnp.abs(t[:, None] - t), 0)
        y = jnp.einsum("bhij,bjhd->bihd", jnp.einsum("bihd,bjhd->bhij", q, k) * mask, v)
        return x + self.back(y.reshape(*x.shape[:2], -1) * nnx.silu(self.gate(x)))


class RetNet(nnx.Module):
    def __init__(self, rngs):
        self.cells = many(2, lambda: Retention(rngs))

    def __call__(self, x):
        for cell in self.cells:
            x = cell(x)
        return x


RETNET: Rules = {"cells/./(query|key|value|gate)/kernel": (None, M), "cells/./back/kernel": (M, None)}


class Tower(nnx.Module):
    def __init__(self, rngs):
        self.heads = many(2, lambda: Heads(rngs))
        self.wide, self.narrow = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))

    def __call__(self, x):
        for h, a, b in zip(self.heads, self.wide, self.narrow, strict=True):
            x = x + h(x)
            x = x + b(nnx.gelu(a(x)))
        return x.mean(1)


class Clip(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(2048, W, rngs=rngs)
        self.text, self.image = Tower(rngs), Tower(rngs)

    def __call__(self, x):
        text, patches = x
        return (self.text(self.words(text)) * self.image(patches)).sum(-1)


CLIP: Rules = HEADS | {"words/embedding": (M, None), ".*/wide/./kernel": (None, M), ".*/narrow/./kernel": (M, None)}


class SlotAttention(nnx.Module):
    def __init__(self, rngs):
        self.slots = nnx.Param(jnp.zeros((4, W)))
        self.heads = Heads(rngs)
        self.grow, self.shrink = line(W, 2 * H, rngs), line(2 * H, W, rngs)
        self.encode1, self.encode2 = line(48, 2 * H, rngs), line(2 * H, W, rngs)

    def __call__(self, x):
        x = self.encode2(nnx.relu(self.encode1(x)))
        s = jnp.broadcast_to(self.slots[...], (x.shape[0], 4, W))
        for _ in range(3):
            s = s + self.heads(s, x)
            s = s + self.shrink(nnx.relu(self.grow(s)))
        return s


SLOTS: Rules = HEADS | {
    "grow/kernel": (None, M),
    "shrink/kernel": (M, None),
    "encode1/kernel": (None, M),
    "encode2/kernel": (M, None),
}


class Fnet(nnx.Module):
    def __init__(self, rngs):
        self.norms = many(4, lambda: nnx.LayerNorm(W, rngs=rngs))
        self.rise, self.fall = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))

    def __call__(self, x):
        for n, (a, b) in enumerate(zip(self.rise, self.fall, strict=True)):
            x = self.norms[2 * n](x + jnp.fft.fft(jnp.fft.fft(x, axis=-1), axis=-2).real)
            x = self.norms[2 * n + 1](x + b(nnx.gelu(a(x))))
        return x


FNET: Rules = {"rise/./kernel": (None, M), "fall/./kernel": (M, None)}


class MultiQuery(nnx.Module):
    def __init__(self, rngs):
        self.tokens = nnx.Embed(1024, W, rngs=rngs)
        self.query = many(2, lambda: nnx.LinearGeneral(W, (8, 16), use_bias=False, rngs=rngs))
        self.shared_key, self.shared_value = many(2, lambda: line(W, 16, rngs)), many(2, lambda: line(W, 16, rngs))
        self.merge = many(2, lambda: nnx.LinearGeneral((8, 16), W, axis=(-2, -1), use_bias=False, rngs=rngs))
        self.gate, self.lift = (many(2, lambda: line(W, 512, rngs)) for _ in range(2))
        self.drop = many(2, lambda: line(512, W, rngs))

    def __call__(self, t):
        x = self.tokens(t)
        for n in range(2):
            q, k, v = self.query[n](x), self.shared_key[n](x), self.shared_value[n](x)
            p = nnx.softmax(jnp.einsum("bihd,bjd->bhij", q, k))
            x = x + self.merge[n](jnp.einsum("bhij,bjd->bihd", p, v))
            x = x + self.drop[n](nnx.silu(self.gate[n](x)) * self.lift[n](x))
        return self.tokens.attend(x)


MULTIQUERY: Rules = {
    "tokens/embedding": (M, None),
    "query/./kernel": (None, M, None),
    "merge/./kernel": (M, None, None),
    "(gate|lift)/./kernel": (None, M),
    "drop/./kernel": (M, None),
}


def bart():
    source, target = kd.Input((L, W), name="source"), kd.Input((L, W), name="target")

    def block(x, memory, name):
        y = layers.MultiHeadAttention(8, 8, use_bias=False, name=f"{name}_attention")(x, memory)
        x = layers.LayerNormalization()(x + y)
        y = layers.Dense(H, "gelu", use_bias=False, name=f"{name}_first")(x)
        return layers.LayerNormalization()(x + layers.Dense(W, use_bias=False, name=f"{name}_second")(y))

    memory = block(source, source, "encoder")
    x = block(target, target, "decoder")
    return kd.Model([source, target], block(x, memory, "cross"))


BART: Rules = {
    ".*_attention/(query|key|value)/kernel": (None, M, None),
    "encoder_attention/attention_output/kernel": (M, None, None),
    "decoder_attention/attention_output/kernel": (M, None, None),
    "cross_attention/attention_output/kernel": (M, None, None),
    ".*_first/kernel": (None, M),
    ".*_second/kernel": (M, None),
}


class Isab(nnx.Module):
    def __init__(self, rngs):
        self.inducing = nnx.Param(jnp.zeros((4, W)))
        self.down, self.up = Heads(rngs), Heads(rngs)
        self.widen, self.reduce = line(W, H, rngs), line(H, W, rngs)

    def __call__(self, x):
        i = jnp.broadcast_to(self.inducing[...], (x.shape[0], 4, W))
        x = x + self.up(x, self.down(i, x))
        return x + self.reduce(nnx.relu(self.widen(x)))


class SetTransformer(nnx.Module):
    def __init__(self, rngs):
        self.isabs = many(2, lambda: Isab(rngs))

    def __call__(self, x):
        for i in self.isabs:
            x = i(x)
        return x


SETS: Rules = HEADS | {".*/widen/kernel": (None, M), ".*/reduce/kernel": (M, None)}


class VitBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.heads = nnx.LayerNorm(W, rngs=rngs), Heads(rngs)
        self.mlp1, self.mlp2 = line(W, H, rngs), line(H, W, rngs)

    def __call__(self, x):
        x = x + self.heads(self.norm(x))
        return x + self.mlp2(nnx.gelu(self.mlp1(x)))


class ScannedVit(nnx.Module):
    def __init__(self, rngs):
        self.trunk = nnx.vmap(lambda key: VitBlock(nnx.Rngs(key)))(jax.random.split(rngs.params(), 4))
        self.labels = line(W, 512, rngs)

    def __call__(self, x):
        x = nnx.scan(lambda x, b: b(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.trunk)
        return self.labels(x)


VIT: Rules = {
    "trunk/heads/(query|key|value)/kernel": (None, None, M, None),
    "trunk/heads/merge/kernel": (None, M, None, None),
    "trunk/mlp1/kernel": (None, None, M),
    "trunk/mlp2/kernel": (None, M, None),
    "labels/kernel": (None, M),
}
