"""Networks with layouts that are known to be good, and mistakes in these: vision, text, experts, tables."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, ExpertsConfig, FeedForwardConfig
from tests.planner import memory_transformers
from tests.planner.memory_transformers import VOCAB, WIDTH, Attention, Block, Fused

D, M, E = "data", "model", "expert"
Rules = dict[str, tuple[str | None, ...]]


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "int32")


class Vit(memory_transformers.Vit):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.blocks = nnx.List([Block(rngs, is_causal=False, is_gated=False) for _ in range(2)])


class T5(memory_transformers.EncoderDecoder):
    """An encoder and a decoder with tied embeddings."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.encoder, self.decoder = (
            nnx.List([Block(rngs, is_causal=is_causal, is_gated=False) for _ in range(2)])
            for is_causal in (False, True)
        )
        self.across = nnx.List([Attention(rngs) for _ in range(2)])


class Gpt2(nnx.Module):
    """Fused queries, keys and values, and tied embeddings."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Fused(rngs) for _ in range(2)])

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


def mixtral():
    sizes = {"vocab_size": 512, "hidden_size": 64, "num_layers": 2, "feed_forward": FeedForwardConfig(256)}
    attention = AttentionConfig(num_heads=8, num_kv_heads=4, head_dim=8)
    experts = ExpertsConfig(num_experts=8, top_k=2, capacity_factor=1.25)
    return Decoder(DecoderConfig(family="mixtral", attention=attention, experts=experts, **sizes))


def mobile_net():
    """Inverted bottlenecks with batch normalization."""
    x = inputs = kd.Input((16, 16, 128))
    for number in range(2):
        y = layers.Conv2D(768, 1, use_bias=False, name=f"expand{number}")(x)
        y = layers.Activation("relu")(layers.BatchNormalization(name=f"norm_a{number}")(y))
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name=f"depth{number}")(y)
        y = layers.Activation("relu")(layers.BatchNormalization(name=f"norm_b{number}")(y))
        y = layers.Conv2D(128, 1, use_bias=False, name=f"project{number}")(y)
        x = x + layers.BatchNormalization(name=f"norm_c{number}")(y)
    return kd.Model(inputs, layers.Dense(10, name="head")(layers.GlobalAveragePooling2D()(x)))


def stack():
    block = kd.Sequential([kd.Input((32, 64)), layers.Dense(256, "relu", name="up"), layers.Dense(64, name="down")])
    return kd.Sequential([kd.Input((32, 64)), layers.Stack(block, 4, name="stack"), layers.Dense(10, name="head")])


def dlrm():
    ids, dense = kd.Input((4,), dtype="int32", name="ids"), kd.Input((16,), name="dense")
    rows = [layers.Embedding(100_000, 32, name=f"table{number}")(ids[:, number]) for number in range(4)]
    x = layers.Concatenate()([*rows, layers.Dense(32, "relu", name="bottom")(dense)])
    x = layers.Dense(512, "relu", name="top1")(layers.Dense(1024, "relu", name="top0")(x))
    return kd.Model([ids, dense], layers.Dense(1, name="top2")(x))


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with a good layout."""

    factory: Callable[..., Any]
    batch: Any
    good: Rules
    axis: Any = D
    mesh: str = "data=2,model=4"
    kind: Any = kd.ModelParallel
    loss: Any = dataclasses.field(default_factory=lambda: kd.losses.SparseCategoricalCrossentropy(from_logits=True))

    def plan(self, distribution: kd.Distribution) -> kd.planner.PlanReport:
        return kd.plan(self.factory, self.batch, distribution, "adam", self.loss)

    def distribution(self, rules: Rules, axis: Any = None) -> kd.Distribution:
        layout_map = kd.LayoutMap(kd.DeviceMesh(self.mesh))
        for rule, axes in rules.items():
            layout_map[rule] = axes
        axis = self.axis if axis is None else axis
        if self.kind is kd.FullySharded:
            return kd.FullySharded(layout_map.device_mesh, D, layout_map, axis)
        return kd.ModelParallel(layout_map, axis)


ATTENTION: Rules = {
    ".*/(query|key|value)/kernel": (None, M, None),
    ".*/(query|key|value)/bias": (M, None),
    ".*/out/kernel": (M, None, None),
}
FEED_FORWARD: Rules = {".*/up/kernel": (None, M), ".*/down/kernel": (M, None)}
FUSED: Rules = {
    ".*/qkv/kernel": (None, M),
    ".*/qkv/bias": (M,),
    ".*/out/kernel": (M, None),
    ".*/up/bias": (M,),
    "embed/embedding": (M, None),
}
CHANNELS: Rules = {
    "expand./kernel": (None, None, None, M),
    "depth./.*kernel": (None, None, M, None),
    "project./kernel": (None, None, M, None),
    "norm_[ab]./(gamma|beta|moving_.*)": (M,),
}
OF_MIXTRAL: Rules = {r"layers/\d+/feed_forward/experts_(gate|up|down)": (E, None, None)}
TABLES: Rules = {"table./embeddings": (M, None)}
BOTH = (D, M)

NETWORKS = {
    "vit": Network(Vit, (floats(2, 128, 128, 3), ints(2)), ATTENTION | FEED_FORWARD | {"head/kernel": (None, M)}),
    "t5": Network(T5, (ints(4, 64), ints(4, 64)), ATTENTION | FEED_FORWARD | {"embed/embedding": (M, None)}),
    "gpt2": Network(Gpt2, (ints(4, 64), ints(4, 64)), FUSED | FEED_FORWARD),
    "mixtral": Network(mixtral, (ints(16, 32), ints(16, 32)), OF_MIXTRAL, (D, E), "data=2,expert=4"),
    "mobile_net": Network(mobile_net, (floats(2, 16, 16, 128), ints(2)), CHANNELS),
    "stack": Network(stack, (floats(16, 32, 64), ints(16, 32)), {}, BOTH, kind=kd.FullySharded),
    "dlrm": Network(dlrm, ([ints(64, 4), floats(64, 16)], floats(64, 1)), TABLES, BOTH, loss="mse"),
}


def without(network: str, *rules: str) -> Rules:
    """The good layout without rules with these parts."""
    good = NETWORKS[network].good
    return {rule: axes for rule, axes in good.items() if not any(part in rule for part in rules)}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """Rules with a mistake, or another axis of the batch, and a regular expression for the path of its cause."""

    network: str
    rules: Rules
    cause: str
    axis: Any = None


def changed(network: str, changes: Rules, cause: str) -> Mistake:
    return Mistake(network, NETWORKS[network].good | changes, cause)


IN_HALF = {
    rule.replace(".*/", "(encoder/.|decoder/0|across/.)/.*"): axes for rule, axes in (ATTENTION | FEED_FORWARD).items()
}
MISTAKES = {
    "vit: up transposed": changed("vit", {".*/up/kernel": (M, None)}, ".*/up/kernel"),
    "vit: down whole": Mistake("vit", without("vit", "down"), ".*/down/kernel"),
    "vit: norms sharded": changed("vit", {".*norm/scale": (M,)}, ".*norm/scale"),
    "t5: half of the decoder": Mistake("t5", IN_HALF | {"embed/embedding": (M, None)}, "decoder/1/.*"),
    "t5: vocabulary whole": Mistake("t5", without("t5", "embed"), "embed/.*"),
    "t5: down over the wrong axis": changed("t5", {".*/down/kernel": (D, None)}, ".*/down/kernel"),
    "t5: table over data": changed("t5", {"embed/embedding": (D, None)}, "embed/.*"),
    "gpt2: rules swapped": changed("gpt2", {".*/qkv/kernel": (M, None), ".*/out/kernel": (None, M)}, ".*/(qkv|out)/.*"),
    "gpt2: out whole": Mistake("gpt2", without("gpt2", "out"), ".*/out/kernel"),
    "gpt2: down whole": Mistake("gpt2", without("gpt2", "down"), ".*/down/kernel"),
    "gpt2: qkv whole": Mistake("gpt2", without("gpt2", "qkv"), ".*/qkv/.*"),
    "mixtral: experts whole": Mistake("mixtral", {}, ".*/experts_.*"),
    "mixtral: experts of one layer": Mistake(
        "mixtral", {r"layers/0/.*experts_.*": (E, None, None)}, ".*/1/.*/experts_.*"
    ),
    "mixtral: batch over one axis": Mistake("mixtral", OF_MIXTRAL, "input.*", D),
    "mobile_net: expand transposed": changed("mobile_net", {"expand./kernel": (None, None, M, None)}, "expand./kernel"),
    "mobile_net: depthwise whole": Mistake("mobile_net", without("mobile_net", "depth"), "depth.*"),
    "mobile_net: project whole": Mistake("mobile_net", without("mobile_net", "project"), "project.*"),
    "stack: batch over one axis": Mistake("stack", {}, "input.*", D),
    "dlrm: half of the tables": Mistake("dlrm", {"table[01]/embeddings": (M, None)}, "table./embeddings"),
    "dlrm: batch over one axis": Mistake("dlrm", TABLES, "(input|top|bottom).*", D),
}
