"""Networks of kinds that `other_mistakes` lacks, each with a good layout and one mistake in it.

They were written before the search for remedies was tried on them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from tests.planner.other_mistakes import BOTH, D, M, Mistake, Network, Rules, floats, ints

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


HEADS = {".*/(query|key|value)/kernel": (None, M, None), ".*/merge/kernel": (M, None, None)}


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


CONFORMER = HEADS | {
    "ff_in/./kernel": (None, M),
    "ff_out/./kernel": (M, None),
    "point_in/kernel": (None, M),
    "depth/kernel": (None, None, M),
    "point_out/kernel": (M, None),
}


class Gmlp(nnx.Module):
    def __init__(self, rngs):
        self.u, self.v, self.out = (many(3, lambda: line(*s, rngs)) for s in ((W, H), (W, H), (H, W)))
        self.gates = many(3, lambda: line(L, L, rngs))

    def __call__(self, x):
        for u, v, g, o in zip(self.u, self.v, self.gates, self.out):
            x = x + o(nnx.gelu(u(x)) * jnp.swapaxes(g(jnp.swapaxes(v(x), 1, 2)), 1, 2))
        return x


GMLP = {"[uv]/./kernel": (None, M), "out/./kernel": (M, None)}


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


PERFORMER = HEADS | {"words/embedding": (M, None), "scores/kernel": (None, M)}


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


RETNET = {"cells/./(query|key|value|gate)/kernel": (None, M), "cells/./back/kernel": (M, None)}


def squeeze():
    x = inputs = kd.Input((16, 16, 64))
    for n in range(2):
        y = layers.Conv2D(256, 3, padding="same", activation="relu", use_bias=False, name=f"wide{n}")(x)
        y = layers.Conv2D(64, 3, padding="same", use_bias=False, name=f"slim{n}")(y)
        s = layers.GlobalAveragePooling2D()(y)
        s = layers.Dense(64, "sigmoid", name=f"excite{n}")(layers.Dense(16, "relu", name=f"press{n}")(s))
        x = x + y * layers.Reshape((1, 1, 64))(s)
    return kd.Model(inputs, x)


SQUEEZE = {"wide./kernel": (None, None, None, M), "slim./kernel": (None, None, M, None)}


class DeepFm(nnx.Module):
    def __init__(self, rngs):
        self.fields = many(3, lambda: nnx.Embed(8192, 32, rngs=rngs))
        self.deep1, self.deep2 = line(96, 512, rngs), line(512, 64, rngs)

    def __call__(self, ids):
        rows = jnp.stack([f(ids[:, n]) for n, f in enumerate(self.fields)], 1)
        pairs = jnp.square(rows.sum(1)) - jnp.square(rows).sum(1)
        return pairs.sum(-1) + self.deep2(nnx.relu(self.deep1(rows.reshape(rows.shape[0], -1)))).sum(-1)


DEEPFM = {"fields/./embedding": (M, None), "deep1/kernel": (None, M), "deep2/kernel": (M, None)}


class Tower(nnx.Module):
    def __init__(self, rngs):
        self.heads = many(2, lambda: Heads(rngs))
        self.wide, self.narrow = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))

    def __call__(self, x):
        for h, a, b in zip(self.heads, self.wide, self.narrow):
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


CLIP = HEADS | {"words/embedding": (M, None), ".*/wide/./kernel": (None, M), ".*/narrow/./kernel": (M, None)}


class PointNet(nnx.Module):
    def __init__(self, rngs):
        self.local1, self.local2, self.global1, self.global2 = (
            line(32, H, rngs),
            line(H, W, rngs),
            line(W, 2 * H, rngs),
            line(2 * H, 32, rngs),
        )

    def __call__(self, x):
        return self.global2(nnx.relu(self.global1(self.local2(nnx.relu(self.local1(x))).max(1))))


POINTS = {"(local|global)1/kernel": (None, M), "(local|global)2/kernel": (M, None)}


class Nerf(nnx.Module):
    def __init__(self, rngs):
        self.ins = many(3, lambda: line(W, H, rngs))
        self.outs = many(3, lambda: line(H, W, rngs))
        self.skip_in, self.skip_out = line(2 * W, H, rngs), line(H, W, rngs)

    def __call__(self, x):
        y = x
        for a, b in zip(self.ins, self.outs):
            y = nnx.relu(b(nnx.relu(a(y))))
        return self.skip_out(nnx.relu(self.skip_in(jnp.concatenate([x, y], -1))))


NERF = {
    "ins/./kernel": (None, M),
    "outs/./kernel": (M, None),
    "skip_in/kernel": (None, M),
    "skip_out/kernel": (M, None),
}


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


SLOTS = HEADS | {
    "grow/kernel": (None, M),
    "shrink/kernel": (M, None),
    "encode1/kernel": (None, M),
    "encode2/kernel": (M, None),
}


class Tcn(nnx.Module):
    def __init__(self, rngs):
        self.opening = many(4, lambda: nnx.Conv(W, H, (3,), use_bias=False, padding="CAUSAL", rngs=rngs))
        self.closing = many(4, lambda: nnx.Conv(H, W, (3,), use_bias=False, padding="CAUSAL", rngs=rngs))

    def __call__(self, x):
        for a, b in zip(self.opening, self.closing):
            x = x + b(nnx.relu(a(x)))
        return x


TCN = {r"opening/\d+/kernel": (None, None, M), r"closing/\d+/kernel": (None, M, None)}


class Fnet(nnx.Module):
    def __init__(self, rngs):
        self.norms = many(4, lambda: nnx.LayerNorm(W, rngs=rngs))
        self.rise, self.fall = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))

    def __call__(self, x):
        for n, (a, b) in enumerate(zip(self.rise, self.fall)):
            x = self.norms[2 * n](x + jnp.fft.fft(jnp.fft.fft(x, axis=-1), axis=-2).real)
            x = self.norms[2 * n + 1](x + b(nnx.gelu(a(x))))
        return x


FNET = {"rise/./kernel": (None, M), "fall/./kernel": (M, None)}


class Softmaxes(nnx.Module):
    """Mixture of softmaxes over a vocabulary."""

    def __init__(self, rngs):
        self.lookup = nnx.Embed(4096, W, rngs=rngs)
        self.body1, self.body2 = line(W, 4 * H, rngs), line(4 * H, W, rngs)
        self.vocabulary = line(W, 4096, rngs)
        self.prior = line(W, 2, rngs)

    def __call__(self, t):
        x = self.lookup(t)
        x = x + self.body2(nnx.gelu(self.body1(x)))
        chance = nnx.softmax(self.prior(x))
        one, two = nnx.softmax(self.vocabulary(x)), nnx.softmax(self.vocabulary(jnp.tanh(x)))
        return jnp.log(one * chance[..., :1] + two * chance[..., 1:])


SOFTMAXES = {
    "lookup/embedding": (M, None),
    "body1/kernel": (None, M),
    "body2/kernel": (M, None),
    "vocabulary/kernel": (None, M),
}


class MultiQuery(nnx.Module):
    def __init__(self, rngs):
        self.tokens = nnx.Embed(1024, W, rngs=rngs)
        self.query = many(2, lambda: nnx.LinearGeneral(W, (8, 16), use_bias=False, rngs=rngs))
        self.shared_key, self.shared_value = many(2, lambda: line(W, 16, rngs)), many(2, lambda: line(W, 16, rngs))
        self.merge = many(2, lambda: nnx.LinearGeneral((8, 16), W, axis=(-2, -1), use_bias=False, rngs=rngs))
        self.gate, self.lift, self.drop = (many(2, lambda: line(*s, rngs)) for s in ((W, 512), (W, 512), (512, W)))

    def __call__(self, t):
        x = self.tokens(t)
        for n in range(2):
            q, k, v = self.query[n](x), self.shared_key[n](x), self.shared_value[n](x)
            p = nnx.softmax(jnp.einsum("bihd,bjd->bhij", q, k))
            x = x + self.merge[n](jnp.einsum("bhij,bjd->bihd", p, v))
            x = x + self.drop[n](nnx.silu(self.gate[n](x)) * self.lift[n](x))
        return self.tokens.attend(x)


MULTIQUERY = {
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


BART = {
    ".*_attention/(query|key|value)/kernel": (None, M, None),
    "encoder_attention/attention_output/kernel": (M, None, None),
    "decoder_attention/attention_output/kernel": (M, None, None),
    "cross_attention/attention_output/kernel": (M, None, None),
    ".*_first/kernel": (None, M),
    ".*_second/kernel": (M, None),
}


def autoencoder():
    x = inputs = kd.Input((128,))
    x = layers.Dense(1024, "relu", name="e1")(x)
    x = layers.Dense(32, name="e2")(x)
    x = layers.Dense(1024, "relu", name="d1")(x)
    return kd.Model(inputs, layers.Dense(128, name="d2")(x))


AUTO = {
    "e1/kernel": (None, M),
    "e1/bias": (M,),
    "e2/kernel": (M, None),
    "d1/kernel": (None, M),
    "d1/bias": (M,),
    "d2/kernel": (M, None),
}


class Fusion(nnx.Module):
    """Low-rank fusion of three inputs."""

    def __init__(self, rngs):
        self.factor_a, self.factor_b, self.factor_c = line(64, 512, rngs), line(32, 512, rngs), line(16, 512, rngs)
        self.fuse = line(512, 64, rngs)

    def __call__(self, x):
        a, b, c = x[:, :64], x[:, 64:96], x[:, 96:]
        return self.fuse(self.factor_a(a) * self.factor_b(b) * self.factor_c(c))


FUSION = {"factor_./kernel": (None, M), "fuse/kernel": (M, None)}


class Selective(nnx.Module):
    """A diagonal state space with a gate."""

    def __init__(self, rngs):
        self.enter, self.gate, self.leave = line(W, 2 * W, rngs), line(W, 2 * W, rngs), line(2 * W, W, rngs)
        self.rate = nnx.Param(jnp.zeros((2 * W, 4)))

    def __call__(self, x):
        u, a = self.enter(x), nnx.sigmoid(self.rate[...])

        def turn(s, u):
            s = s * a + u[..., None]
            return s, s.sum(-1)

        _, y = jax.lax.scan(turn, jnp.zeros((x.shape[0], 2 * W, 4)), jnp.moveaxis(u, 1, 0))
        return x + self.leave(jnp.moveaxis(y, 0, 1) * nnx.silu(self.gate(x)))


class Mamba(nnx.Module):
    def __init__(self, rngs):
        self.mixers = many(3, lambda: Selective(rngs))

    def __call__(self, x):
        for m in self.mixers:
            x = m(x)
        return x


MAMBA = {"mixers/./(enter|gate)/kernel": (None, M), "mixers/./rate": (M, None), "mixers/./leave/kernel": (M, None)}


class Dense2Experts(nnx.Module):
    """All experts on all tokens, mixed by a router."""

    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        self.router = line(W, 8, rngs)
        self.first, self.second = (
            nnx.Param(init(rngs.params(), (8, W, 128))),
            nnx.Param(init(rngs.params(), (8, 128, W))),
        )
        self.enter, self.leave = line(W, H, rngs), line(H, W, rngs)

    def __call__(self, x):
        x = x + self.leave(nnx.relu(self.enter(x)))
        h = nnx.relu(jnp.einsum("blw,ewh->eblh", x, self.first[...]))
        return x + jnp.einsum("eblh,ehw,ble->blw", h, self.second[...], nnx.softmax(self.router(x)))


EXPERTS = {"first": (M, None, None), "second": (M, None, None), "enter/kernel": (None, M), "leave/kernel": (M, None)}


def generator():
    x = inputs = kd.Input((64,))
    x = layers.Dense(4 * 4 * 64, "relu", use_bias=False, name="project")(x)
    x = layers.Reshape((4, 4, 64))(x)
    x = layers.Conv2DTranspose(256, 4, strides=2, padding="same", activation="relu", use_bias=False, name="rise1")(x)
    x = layers.Conv2D(64, 3, padding="same", use_bias=False, name="mend1")(x)
    x = layers.Conv2DTranspose(256, 4, strides=2, padding="same", activation="relu", use_bias=False, name="rise2")(x)
    return kd.Model(inputs, layers.Conv2D(8, 3, padding="same", use_bias=False, name="mend2")(x))


GENERATOR = {"rise./kernel": (None, None, M, None), "mend./kernel": (None, None, M, None)}


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


SETS = HEADS | {".*/widen/kernel": (None, M), ".*/reduce/kernel": (M, None)}


class CharCnn(nnx.Module):
    def __init__(self, rngs):
        self.chars = nnx.Embed(256, 32, rngs=rngs)
        self.wide = nnx.Conv(32, 512, (5,), use_bias=False, rngs=rngs)
        self.narrow = nnx.Conv(512, W, (1,), use_bias=False, rngs=rngs)
        self.high, self.low = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))

    def __call__(self, t):
        x = self.narrow(nnx.relu(self.wide(self.chars(t)))).max(1)
        for a, b in zip(self.high, self.low):
            x = x + b(nnx.relu(a(x)))
        return x


CHARS = {
    "wide/kernel": (None, None, M),
    "narrow/kernel": (None, M, None),
    "high/./kernel": (None, M),
    "low/./kernel": (M, None),
}


def seq2seq():
    source, target = kd.Input((L, W), name="source"), kd.Input((L, W), name="target")
    _, state = layers.GRU(128, return_state=True, name="reader")(source)
    y = layers.GRU(128, return_sequences=True, name="writer")(target, initial_state=state)
    return kd.Model([source, target], layers.Dense(256, name="answer")(y))


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


VIT = {
    "trunk/heads/(query|key|value)/kernel": (None, None, M, None),
    "trunk/heads/merge/kernel": (None, M, None, None),
    "trunk/mlp1/kernel": (None, None, M),
    "trunk/mlp2/kernel": (None, M, None),
    "labels/kernel": (None, M),
}


class Memory(nnx.Module):
    """A key-value memory that is read by products, as product-key memories."""

    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        self.ask = many(2, lambda: line(W, W, rngs))
        self.keys, self.values = (
            nnx.List([nnx.Param(init(rngs.params(), (4096, W))) for _ in range(2)]) for _ in range(2)
        )

    def __call__(self, x):
        for ask, k, v in zip(self.ask, self.keys, self.values):
            x = x + nnx.softmax(ask(x) @ k[...].T) @ v[...]
        return x


MEMORY = {"(keys|values)/.": (M, None)}
