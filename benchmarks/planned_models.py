"""The models that `bench_auto` plans, with the layouts that an expert would write for them by hand."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import keras_dist as kd
from benchmarks import decoders, planned_modules, planned_unseen

Rules = Mapping[str, Sequence[Any]]

_BLOCK = r"blocks/\d+"
PUBLIC, PUBLIC_ROWS = ("Llama 3.2 1B (tunix)", "Qwen 3 0.6B (tunix)"), 2
"""Models of others, which `planned_public` has, and the rows of their batches for each device."""
TOKENS = "sparse_categorical_crossentropy"


@dataclasses.dataclass(frozen=True)
class Planned:
    """A model, what it is trained with, and an expert's layout.

    Attributes:
        factory: makes the model.
        row: the shapes `(x, y)` of a row of the batch.
        loss: between its outputs, which are logits where it is a crossentropy, and `y`.
        rows: of the batch, for each device.
        rules: of tensor parallelism over the axis `model`, as Megatron-LM does it, or as is usual for such models.
        axis_names: where the rules are the model's own, what the names stand for that it gives to dims.
        is_ours: whether it is a `keras_dist.Model`.
    """

    factory: Callable[..., Any]
    row: tuple[Any, Any]
    loss: str
    rows: int
    rules: Rules
    axis_names: Mapping[str, Any] | None = None
    is_ours: bool = False

    def batch(self, rows: int) -> tuple[Any, Any]:
        """The shapes `(x, y)` of a batch."""
        return jax.tree.map(lambda each: jax.ShapeDtypeStruct((rows, *each.shape), each.dtype), self.row)


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """Integers of a row."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


_FULL = types.SimpleNamespace(
    decoder=decoders.Sizes(layers=1, embed=1024, mlp=2816, heads=16, kv_heads=8, vocab=32768),
    experts=(decoders.Sizes(layers=1, embed=512, mlp=2048, heads=8, kv_heads=8, vocab=32768), 16),
    encoder={"vocab": 30592, "length": 512, "embed": 1024, "mlp": 4096, "heads": 16, "layers": 1},
    vit={"image": 224, "patch": 16, "embed": 1024, "mlp": 4096, "heads": 16, "layers": 1, "classes": 1000},
    mixer={"tokens": 196, "embed": 1024, "token_mlp": 512, "mlp": 4096, "layers": 1, "classes": 1000},
    resnet=({"width": 128, "stages": (1, 1, 1, 1), "classes": 1000}, 128),
    unet=({"channels": (320, 640), "numbers": 4}, 32),
    state_space={"vocab": 32768, "embed": 1024, "inner": 2048, "state": 128, "heads": 32, "chunk": 128, "layers": 1},
    recommender={"tables": (2**20,) * 8, "embed": 128, "mlp": (1024, 1024, 512)},
    ours=decoders.Sizes(layers=1, embed=1024, mlp=4096, heads=16, kv_heads=16, vocab=32768),
    time_mix={"vocab": 32768, "embed": 1024, "mlp": 4096, "layers": 1},
    segmenter=({"channels": (64, 128, 256), "classes": 32}, 64),
    towers={"users": 2**20, "items": 2**18, "embed": 256, "mlp": 1024},
    windows=({"embed": 256, "heads": 8, "window": 7, "classes": 1000}, 112),
    length=512,
    rows=2,
    images=16,
    clicks=2048,
)
"""Sizes of 1 to 1,100 million parameters, with one block: XLA for TPUs compiles each program for a minute."""

_TINY = types.SimpleNamespace(
    decoder=decoders.TINY,
    experts=(dataclasses.replace(decoders.TINY, layers=1), 4),
    encoder={"vocab": 128, "length": 16, "embed": 32, "mlp": 64, "heads": 4, "layers": 2},
    vit={"image": 16, "patch": 4, "embed": 32, "mlp": 64, "heads": 4, "layers": 2, "classes": 16},
    mixer={"tokens": 16, "embed": 32, "token_mlp": 16, "mlp": 64, "layers": 2, "classes": 16},
    resnet=({"width": 8, "stages": (1, 1), "classes": 16}, 16),
    unet=({"channels": (16, 32), "numbers": 4}, 16),
    state_space={"vocab": 128, "embed": 32, "inner": 64, "state": 16, "heads": 4, "chunk": 8, "layers": 2},
    recommender={"tables": (256,) * 2, "embed": 16, "mlp": (32, 32)},
    ours=dataclasses.replace(decoders.TINY, layers=1),
    time_mix={"vocab": 128, "embed": 32, "mlp": 64, "layers": 1},
    segmenter=({"channels": (8, 16), "classes": 4}, 16),
    towers={"users": 256, "items": 128, "embed": 16, "mlp": 32},
    windows=({"embed": 32, "heads": 4, "window": 2, "classes": 16}, 16),
    length=16,
    rows=2,
    images=2,
    clicks=8,
)

_EXPERTS = {
    r"experts/\d+/(up|down)": ("model", None, None),
    r"attention/\d+/(query|key|value)/kernel": (None, "model"),
    r"attention/\d+/out/kernel": ("model", None),
    "embed/embedding": ("model", None),
    "head/kernel": (None, "model"),
}
_ENCODER = {
    rf"{_BLOCK}/(qkv|up)/kernel": (None, "model"),
    rf"{_BLOCK}/(qkv|up)/bias": ("model",),
    rf"{_BLOCK}/(out|down)/kernel": ("model", None),
    "embed/embedding": ("model", None),
}
_VIT = {
    rf"{_BLOCK}/attention/(query|key|value)/kernel": (None, "model", None),
    rf"{_BLOCK}/attention/(query|key|value)/bias": ("model", None),
    rf"{_BLOCK}/attention/out/kernel": ("model", None, None),
    rf"{_BLOCK}/up/kernel": (None, "model"),
    rf"{_BLOCK}/up/bias": ("model",),
    rf"{_BLOCK}/down/kernel": ("model", None),
    "head/kernel": (None, "model"),
    "head/bias": ("model",),
}
_MIXER = {
    r"along_(tokens|channels)/\d+/0/kernel": (None, "model"),
    r"along_(tokens|channels)/\d+/0/bias": ("model",),
    r"along_(tokens|channels)/\d+/1/kernel": ("model", None),
    "head/kernel": (None, "model"),
    "head/bias": ("model",),
}
_RESNET = {
    r"blocks/\d+/convs/0/kernel": (None, None, None, "model"),
    r"blocks/\d+/norms/0/(scale|bias|mean|var)": ("model",),
    r"blocks/\d+/convs/1/kernel": (None, None, "model", None),
    "head/kernel": (None, "model"),
    "head/bias": ("model",),
}
"""Channels between the first and the second convolution, and classes: an expert would not do even that."""
_PAIR = r"(down/\d+|middle|up/\d+)"
_UNET = {
    f"{_PAIR}/conv1/kernel": (None, None, None, "model"),
    f"{_PAIR}/norm2/(scale|bias)": ("model",),
    f"{_PAIR}/conv2/kernel": (None, None, "model", None),
}
_STATE_SPACE = {
    rf"{_BLOCK}/joined/kernel": (None, "model"),
    rf"{_BLOCK}/conv/kernel": (None, None, "model"),
    rf"{_BLOCK}/out_norm/scale": ("model",),
    rf"{_BLOCK}/out/kernel": ("model", None),
    "embed/embedding": ("model", None),
    "head/kernel": (None, "model"),
}
"""As in Megatron-LM, although the parts that come from the joined kernel do not end where its shards do."""
_OURS = {
    r"block\d+_attention/(query|key|value)/kernel": (None, "model", None),
    r"block\d+_attention/(query|key|value)/bias": ("model", None),
    r"block\d+_attention/attention_output/kernel": ("model", None, None),
    r"block\d+_up/kernel": (None, "model"),
    r"block\d+_up/bias": ("model",),
    r"block\d+_down/kernel": ("model", None),
    "embed/embeddings": ("model", None),
    "head/kernel": (None, "model"),
    "head/bias": ("model",),
}
_TIME_MIX = {
    rf"{_BLOCK}/(key|value|receptance|up)/kernel": (None, "model"),
    rf"{_BLOCK}/(decay|bonus)": ("model",),
    rf"{_BLOCK}/(out|down)/kernel": ("model", None),
    "embed/embedding": ("model", None),
    "head/kernel": (None, "model"),
}
_SEGMENTER = {
    r"down/\d+/layers/2/kernel": (None, None, None, "model"),
    r"down/\d+/layers/2/bias": ("model",),
    r"down/\d+/layers/4/kernel": (None, None, "model", None),
}
_TOWERS = {
    "(users|items)/embedding": ("model", None),
    "(user|item)_up/kernel": (None, "model"),
    "(user|item)_up/bias": ("model",),
    "(user|item)_down/kernel": ("model", None),
}
_WINDOWS = {
    r"(first|second)/\d+/(query|key|value)/kernel": (None, "model", None),
    r"(first|second)/\d+/(query|key|value)/bias": ("model", None),
    r"(first|second)/\d+/out/kernel": ("model", None, None),
    r"(first|second)/\d+/bias": ("model", None, None),
    r"(first|second)/\d+/up/kernel": (None, "model"),
    r"(first|second)/\d+/up/bias": ("model",),
    r"(first|second)/\d+/down/kernel": ("model", None),
}
_RECOMMENDER = {r"tables/\d+/embedding": (("data", "model"), None)}
"""Rows of tables over all devices, each of which looks up a part of every batch."""


def planned_models(*, tiny: bool = False) -> dict[str, Planned]:
    """The models by name; `tiny` ones are of the same form."""
    size, m, u, make = _TINY if tiny else _FULL, planned_modules, planned_unseen, functools.partial
    tokens, encoded = ((ints(length), ints(length)) for length in (size.length, size.encoder["length"]))
    (resnet, pixels), (unet, edge), sides = size.resnet, size.unet, size.vit["image"]
    latents, patches = _floats(edge, edge, unet["numbers"]), _floats(size.mixer["tokens"], 768)
    vit, pictures = ((_floats(side, side, 3), ints()) for side in (sides, pixels))
    clicks = {"numbers": _floats(13), "categories": ints(len(size.recommender["tables"]))}, _floats(1)
    (segmenter, edges), (windows, frame) = size.segmenter, size.windows
    pixel, framed = (_floats(edges, edges, 3), ints(edges, edges)), (_floats(frame, frame, 3), ints())
    pairs = {"user": ints(32), "item": ints()}, ints()
    binary, ours = "binary_crossentropy", make(_our_decoder, size.ours, size.length)
    return {
        "decoder": Planned(make(decoders.Decoder, size.decoder), tokens, TOKENS, size.rows, decoders.megatron({})),
        "mixture of experts": Planned(make(m.ExpertDecoder, *size.experts), tokens, TOKENS, size.rows, _EXPERTS),
        "encoder, tied": Planned(make(m.TiedEncoder, **size.encoder), encoded, TOKENS, 2 * size.rows, _ENCODER),
        "vision transformer": Planned(make(m.ViT, **size.vit), vit, TOKENS, size.images, _VIT),
        "mixer": Planned(make(m.Mixer, **size.mixer), (patches, ints()), TOKENS, size.images, _MIXER),
        "ResNet": Planned(make(m.ResNet, **resnet), pictures, TOKENS, size.images, _RESNET),
        "U-Net": Planned(make(m.UNet, **unet), (latents, latents), "mse", size.images // 2, _UNET),
        "state space": Planned(make(m.StateSpace, **size.state_space), tokens, TOKENS, size.rows, _STATE_SPACE),
        "recommender": Planned(make(m.Recommender, **size.recommender), clicks, binary, size.clicks, _RECOMMENDER),
        "decoder, keras_dist": Planned(ours, tokens, TOKENS, size.rows, _OURS, is_ours=True),
        "time mix, unseen": Planned(make(u.TimeMixDecoder, **size.time_mix), tokens, TOKENS, size.rows, _TIME_MIX),
        "segmenter, unseen": Planned(make(u.Segmenter, **segmenter), pixel, TOKENS, size.images, _SEGMENTER),
        "two towers, unseen": Planned(make(u.TwoTowers, **size.towers), pairs, TOKENS, size.clicks // 8, _TOWERS),
        "windows, unseen": Planned(make(u.WindowTransformer, **windows), framed, TOKENS, size.images, _WINDOWS),
    }


def _our_decoder(sizes: decoders.Sizes, length: int) -> Any:
    """A decoder of Keras's layers."""
    tokens = x = kd.Input((length,), dtype="int32")
    x = kd.layers.Embedding(sizes.vocab, sizes.embed, name="embed")(x)
    for index in range(sizes.layers):
        name = f"block{index}"
        normed = kd.layers.LayerNormalization(name=f"{name}_norm1")(x)
        attention = kd.layers.MultiHeadAttention(sizes.heads, sizes.head_dim, name=f"{name}_attention")
        x = x + attention(normed, normed, use_causal_mask=True)
        normed = kd.layers.LayerNormalization(name=f"{name}_norm2")(x)
        hidden = kd.layers.Dense(sizes.mlp, "gelu", name=f"{name}_up")(normed)
        x = x + kd.layers.Dense(sizes.embed, name=f"{name}_down")(hidden)
    return kd.Model(tokens, kd.layers.Dense(sizes.vocab, name="head")(x))


def rows_of(model: str, tiny: bool) -> int:
    """The rows of a model's batch for each device."""
    return PUBLIC_ROWS if model in PUBLIC else planned_models(tiny=tiny)[model].rows
