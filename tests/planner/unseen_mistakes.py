"""Networks of kinds that `other_mistakes` lacks, each with a good layout and one mistake in it.

They were written, with their layouts and mistakes, before the search for remedies was tried on them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from tests.planner import unseen_transformers as transformers
from tests.planner.other_mistakes import BOTH, D, M, Mistake, Network, Rules, floats, ints
from tests.planner.unseen_transformers import H, L, W, line, many


def squeeze():
    x = inputs = kd.Input((16, 16, 64))
    for n in range(2):
        y = layers.Conv2D(256, 3, padding="same", activation="relu", use_bias=False, name=f"wide{n}")(x)
        y = layers.Conv2D(64, 3, padding="same", use_bias=False, name=f"slim{n}")(y)
        s = layers.GlobalAveragePooling2D()(y)
        s = layers.Dense(64, "sigmoid", name=f"excite{n}")(layers.Dense(16, "relu", name=f"press{n}")(s))
        x = x + y * layers.Reshape((1, 1, 64))(s)
    return kd.Model(inputs, x)


SQUEEZE: Rules = {"wide./kernel": (None, None, None, M), "slim./kernel": (None, None, M, None)}


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


POINTS: Rules = {"(local|global)1/kernel": (None, M), "(local|global)2/kernel": (M, None)}


class Nerf(nnx.Module):
    def __init__(self, rngs):
        self.ins = many(3, lambda: line(W, H, rngs))
        self.outs = many(3, lambda: line(H, W, rngs))
        self.skip_in, self.skip_out = line(2 * W, H, rngs), line(H, W, rngs)

    def __call__(self, x):
        y = x
        for a, b in zip(self.ins, self.outs, strict=True):
            y = nnx.relu(b(nnx.relu(a(y))))
        return self.skip_out(nnx.relu(self.skip_in(jnp.concatenate([x, y], -1))))


NERF: Rules = {
    "ins/./kernel": (None, M),
    "outs/./kernel": (M, None),
    "skip_in/kernel": (None, M),
    "skip_out/kernel": (M, None),
}


class Tcn(nnx.Module):
    def __init__(self, rngs):
        self.opening = many(4, lambda: nnx.Conv(W, H, (3,), use_bias=False, padding="CAUSAL", rngs=rngs))
        self.closing = many(4, lambda: nnx.Conv(H, W, (3,), use_bias=False, padding="CAUSAL", rngs=rngs))

    def __call__(self, x):
        for a, b in zip(self.opening, self.closing, strict=True):
            x = x + b(nnx.relu(a(x)))
        return x


TCN: Rules = {r"opening/\d+/kernel": (None, None, M), r"closing/\d+/kernel": (None, M, None)}


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


SOFTMAXES: Rules = {
    "lookup/embedding": (M, None),
    "body1/kernel": (None, M),
    "body2/kernel": (M, None),
    "vocabulary/kernel": (None, M),
}


def autoencoder():
    x = inputs = kd.Input((128,))
    x = layers.Dense(1024, "relu", name="e1")(x)
    x = layers.Dense(32, name="e2")(x)
    x = layers.Dense(1024, "relu", name="d1")(x)
    return kd.Model(inputs, layers.Dense(128, name="d2")(x))


AUTO: Rules = {
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


FUSION: Rules = {"factor_./kernel": (None, M), "fuse/kernel": (M, None)}


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


MAMBA: Rules = {
    "mixers/./(enter|gate)/kernel": (None, M),
    "mixers/./rate": (M, None),
    "mixers/./leave/kernel": (M, None),
}


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


EXPERTS: Rules = {
    "first": (M, None, None),
    "second": (M, None, None),
    "enter/kernel": (None, M),
    "leave/kernel": (M, None),
}


def generator():
    x = inputs = kd.Input((64,))
    x = layers.Dense(4 * 4 * 64, "relu", use_bias=False, name="project")(x)
    x = layers.Reshape((4, 4, 64))(x)
    x = layers.Conv2DTranspose(256, 4, strides=2, padding="same", activation="relu", use_bias=False, name="rise1")(x)
    x = layers.Conv2D(64, 3, padding="same", use_bias=False, name="mend1")(x)
    x = layers.Conv2DTranspose(256, 4, strides=2, padding="same", activation="relu", use_bias=False, name="rise2")(x)
    return kd.Model(inputs, layers.Conv2D(8, 3, padding="same", use_bias=False, name="mend2")(x))


GENERATOR: Rules = {
    "project/kernel": (M, None),
    "rise./kernel": (None, None, M, None),
    "mend./kernel": (None, None, M, None),
}


class CharCnn(nnx.Module):
    def __init__(self, rngs):
        self.chars = nnx.Embed(256, 32, rngs=rngs)
        self.wide = nnx.Conv(32, 512, (5,), use_bias=False, rngs=rngs)
        self.narrow = nnx.Conv(512, W, (1,), use_bias=False, rngs=rngs)
        self.high, self.low = many(2, lambda: line(W, H, rngs)), many(2, lambda: line(H, W, rngs))

    def __call__(self, t):
        x = self.narrow(nnx.relu(self.wide(self.chars(t)))).max(1)
        for a, b in zip(self.high, self.low, strict=True):
            x = x + b(nnx.relu(a(x)))
        return x


CHARS: Rules = {
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


class Memory(nnx.Module):
    """A key-value memory that is read by products, as product-key memories."""

    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        self.ask = many(2, lambda: line(W, W, rngs))
        self.keys, self.values = (
            nnx.List([nnx.Param(init(rngs.params(), (4096, W))) for _ in range(2)]) for _ in range(2)
        )

    def __call__(self, x):
        for ask, k, v in zip(self.ask, self.keys, self.values, strict=True):
            x = x + nnx.softmax(ask(x) @ k[...].T) @ v[...]
        return x


MEMORY: Rules = {"(keys|values)/.": (M, None)}


def swap(good: Rules, one: str, other: str) -> Rules:
    return good | {one: good[other], other: good[one]}


def drop(good: Rules, rule: str) -> Rules:
    return {each: axes for each, axes in good.items() if each != rule}


NETWORKS = {
    "conformer": Network(transformers.Conformer, floats(8, 32, W), transformers.CONFORMER, loss=None),
    "gmlp": Network(transformers.Gmlp, floats(8, L, W), transformers.GMLP, loss=None),
    "performer": Network(transformers.Performer, ints(8, L), transformers.PERFORMER, loss=None),
    "retnet": Network(transformers.RetNet, floats(8, L, W), transformers.RETNET, loss=None),
    "squeeze": Network(squeeze, floats(8, 16, 16, 64), SQUEEZE, loss=None),
    "clip": Network(transformers.Clip, ([ints(8, L), floats(8, L, W)],), transformers.CLIP, loss=None),
    "points": Network(PointNet, floats(16, 64, 32), POINTS, loss=None),
    "nerf": Network(Nerf, floats(256, W), NERF, loss=None),
    "slots": Network(transformers.SlotAttention, floats(8, 64, 48), transformers.SLOTS, loss=None),
    "tcn": Network(Tcn, floats(8, 64, W), TCN, loss=None),
    "fnet": Network(transformers.Fnet, floats(8, L, W), transformers.FNET, loss=None),
    "softmaxes": Network(Softmaxes, ints(8, L), SOFTMAXES, loss=None),
    "multiquery": Network(transformers.MultiQuery, ints(8, L), transformers.MULTIQUERY, loss=None),
    "bart": Network(transformers.bart, ([floats(8, L, W), floats(8, L, W)],), transformers.BART, loss=None),
    "autoencoder": Network(autoencoder, floats(256, 128), AUTO, loss=None),
    "fusion": Network(Fusion, floats(256, 112), FUSION, loss=None),
    "mamba": Network(Mamba, floats(8, 32, W), MAMBA, loss=None),
    "experts": Network(Dense2Experts, floats(8, L, W), EXPERTS, loss=None),
    "generator": Network(generator, floats(32, 64), GENERATOR, loss=None),
    "sets": Network(transformers.SetTransformer, floats(8, 32, W), transformers.SETS, loss=None),
    "chars": Network(CharCnn, ints(8, 64), CHARS, loss=None),
    "seq2seq": Network(seq2seq, ([floats(16, L, W), floats(16, L, W)],), {}, BOTH, loss=None, kind=kd.FullySharded),
    "vit": Network(transformers.ScannedVit, floats(8, L, W), transformers.VIT, loss=None),
    "memory": Network(Memory, floats(8, L, W), MEMORY, loss=None),
}

MISTAKES = {
    "conformer: point_out transposed": Mistake(
        "conformer", transformers.CONFORMER | {"point_out/kernel": (None, M)}, "point_out/kernel"
    ),
    "gmlp: out dropped": Mistake("gmlp", drop(transformers.GMLP, "out/./kernel"), "out/./kernel"),
    "performer: query, key, value transposed": Mistake(
        "performer",
        transformers.PERFORMER | {".*/(query|key|value)/kernel": (M, None, None)},
        ".*/(query|key|value)/kernel",
    ),
    "retnet: back over data": Mistake(
        "retnet", transformers.RETNET | {"cells/./back/kernel": (D, None)}, "cells/./back/kernel"
    ),
    "squeeze: slim double-sharded": Mistake("squeeze", SQUEEZE | {"slim./kernel": (None, None, M, D)}, "slim./kernel"),
    "clip: batch over model": Mistake("clip", transformers.CLIP, "input.*", M),
    "points: rule matches too much": Mistake("points", {"(local|global)./kernel": (None, M)}, "(local|global)2/kernel"),
    "nerf: skip_in transposed": Mistake("nerf", NERF | {"skip_in/kernel": (M, None)}, "skip_in/kernel"),
    "slots: grow over data": Mistake("slots", transformers.SLOTS | {"grow/kernel": (None, D)}, "grow/kernel"),
    "tcn: half of closing": Mistake(
        "tcn", drop(TCN, "closing/\\d+/kernel") | {"closing/[01]/kernel": (None, M, None)}, "closing/./kernel"
    ),
    "fnet: fall dropped": Mistake("fnet", drop(transformers.FNET, "fall/./kernel"), "fall/./kernel"),
    "softmaxes: vocabulary transposed": Mistake(
        "softmaxes", SOFTMAXES | {"vocabulary/kernel": (M, None)}, "vocabulary/kernel"
    ),
    "multiquery: units of heads": Mistake(
        "multiquery", transformers.MULTIQUERY | {"query/./kernel": (None, None, M)}, "query/./kernel"
    ),
    "bart: cross output dropped": Mistake(
        "bart",
        drop(transformers.BART, "cross_attention/attention_output/kernel"),
        "cross_attention/attention_output/kernel",
    ),
    "autoencoder: e1 and e2 swapped": Mistake("autoencoder", swap(AUTO, "e1/kernel", "e2/kernel"), "e[12]/kernel"),
    "fusion: batch whole": Mistake("fusion", FUSION, "input.*", ()),
    "mamba: leave transposed": Mistake("mamba", MAMBA | {"mixers/./leave/kernel": (None, M)}, "mixers/./leave/kernel"),
    "experts: second over features": Mistake("experts", EXPERTS | {"second": (None, None, M)}, "second"),
    "generator: rise transposed": Mistake(
        "generator", GENERATOR | {"rise./kernel": (None, None, None, M)}, "rise./kernel"
    ),
    "sets: widen double-sharded": Mistake("sets", transformers.SETS | {".*/widen/kernel": (D, M)}, ".*/widen/kernel"),
    "chars: wide over data": Mistake("chars", CHARS | {"wide/kernel": (None, None, D)}, "wide/kernel"),
    "seq2seq: batch over one axis": Mistake("seq2seq", {}, "input.*", D),
    "vit: mlp2 transposed in the scan": Mistake(
        "vit", transformers.VIT | {"trunk/mlp2/kernel": (None, None, M)}, "trunk/mlp2/kernel"
    ),
    "memory: keys transposed": Mistake("memory", {"keys/.": (None, M), "values/.": (M, None)}, "keys/."),
}
