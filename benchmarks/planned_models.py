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
from benchmarks import decoders, planned_modules

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
        batch: from a number of rows the shapes `(x, y)`.
        loss: between its outputs, which are logits where it is a crossentropy, and `y`.
        rows: of the batch, for each device.
        rules: of tensor parallelism over the axis `model`, as Megatron-LM does it, or as is usual for such models.
        axis_names: where the rules are the model's own, what the names stand for that it gives to dims.
        is_ours: whether it is a `keras_dist.Model`.
    """

    factory: Callable[..., Any]
    batch: Callable[[int], tuple[Any, Any]]
    loss: str
    rows: int
    rules: Rules
    axis_names: Mapping[str, Any] | None = None
    is_ours: bool = False


def planned_models(*, tiny: bool = False) -> dict[str, Planned]:
    """The models by name; `tiny` ones are of the same form."""
    size = _TINY if tiny else _FULL
    return {
        "decoder": _decoder(size),
        "mixture of experts": _experts(size),
        "encoder, tied": _encoder(size),
        "vision transformer": _vit(size),
        "mixer": _mixer(size),
        "ResNet": _resnet(size),
        "U-Net": _unet(size),
        "state space": _state_space(size),
        "recommender": _recommender(size),
        "decoder, keras_dist": _ours(size),
    }


_FULL = types.SimpleNamespace(
    decoder=decoders.Sizes(layers=4, embed=2048, mlp=5632, heads=16, kv_heads=8, vocab=32768),
    experts=(decoders.Sizes(layers=3, embed=1024, mlp=4096, heads=16, kv_heads=16, vocab=32768), 16),
    encoder={"vocab": 30592, "length": 512, "embed": 1536, "mlp": 6144, "heads": 24, "layers": 6},
    vit={"image": 224, "patch": 16, "embed": 1536, "mlp": 6144, "heads": 24, "layers": 6, "classes": 1000},
    mixer={"tokens": 196, "embed": 1536, "token_mlp": 512, "mlp": 6144, "layers": 6, "classes": 1000},
    resnet=({"width": 128, "stages": (2, 2, 2, 2), "classes": 1000}, 224),
    unet=({"channels": (320, 640, 1280), "numbers": 4}, 64),
    state_space={"vocab": 32768, "embed": 2048, "inner": 4096, "state": 128, "heads": 64, "chunk": 128, "layers": 4},
    recommender={"tables": (2**20,) * 8, "embed": 128, "mlp": (1024, 1024, 512)},
    ours=decoders.Sizes(layers=3, embed=2048, mlp=8192, heads=16, kv_heads=16, vocab=32768),
    length=1024,
    rows=2,
    images=32,
    clicks=2048,
)
"""Sizes of 0.1 to 1.1 billion parameters."""


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
    length=16,
    rows=2,
    images=2,
    clicks=8,
)


def _decoder(size: Any) -> Planned:
    rules: dict[str, Any] = {}
    decoders.megatron(rules)
    factory = functools.partial(decoders.Decoder, size.decoder)
    return Planned(factory, token_batch(size.length), TOKENS, size.rows, rules)


def _experts(size: Any) -> Planned:
    sizes, experts = size.experts
    rules = {
        r"experts/\d+/(up|down)": ("model", None, None),
        r"attention/\d+/(query|key|value)/kernel": (None, "model"),
        r"attention/\d+/out/kernel": ("model", None),
        "embed/embedding": ("model", None),
        "head/kernel": (None, "model"),
    }
    factory = functools.partial(planned_modules.ExpertDecoder, sizes, experts)
    return Planned(factory, token_batch(size.length), TOKENS, size.rows, rules)


def _encoder(size: Any) -> Planned:
    rules = {
        rf"{_BLOCK}/(qkv|up)/kernel": (None, "model"),
        rf"{_BLOCK}/(qkv|up)/bias": ("model",),
        rf"{_BLOCK}/(out|down)/kernel": ("model", None),
        "embed/embedding": ("model", None),
    }
    factory = functools.partial(planned_modules.TiedEncoder, **size.encoder)
    return Planned(factory, token_batch(size.encoder["length"]), TOKENS, 2 * size.rows, rules)


def _vit(size: Any) -> Planned:
    rules = {
        rf"{_BLOCK}/attention/(query|key|value)/kernel": (None, "model", None),
        rf"{_BLOCK}/attention/(query|key|value)/bias": ("model", None),
        rf"{_BLOCK}/attention/out/kernel": ("model", None, None),
        rf"{_BLOCK}/up/kernel": (None, "model"),
        rf"{_BLOCK}/up/bias": ("model",),
        rf"{_BLOCK}/down/kernel": ("model", None),
        "head/kernel": (None, "model"),
        "head/bias": ("model",),
    }
    factory = functools.partial(planned_modules.ViT, **size.vit)
    return Planned(factory, _images(size.vit["image"]), TOKENS, size.images, rules)


def _mixer(size: Any) -> Planned:
    rules = {
        r"along_(tokens|channels)/\d+/0/kernel": (None, "model"),
        r"along_(tokens|channels)/\d+/0/bias": ("model",),
        r"along_(tokens|channels)/\d+/1/kernel": ("model", None),
        "head/kernel": (None, "model"),
        "head/bias": ("model",),
    }

    def batch(rows: int) -> tuple[Any, Any]:
        return _floats(rows, size.mixer["tokens"], 768), _ints(rows)

    return Planned(functools.partial(planned_modules.Mixer, **size.mixer), batch, TOKENS, size.images, rules)


def _resnet(size: Any) -> Planned:
    """Channels between the first and the second convolution, and classes: an expert would not do even that."""
    options, image = size.resnet
    rules = {
        r"blocks/\d+/convs/0/kernel": (None, None, None, "model"),
        r"blocks/\d+/norms/0/(scale|bias|mean|var)": ("model",),
        r"blocks/\d+/convs/1/kernel": (None, None, "model", None),
        "head/kernel": (None, "model"),
        "head/bias": ("model",),
    }
    return Planned(functools.partial(planned_modules.ResNet, **options), _images(image), TOKENS, size.images, rules)


def _unet(size: Any) -> Planned:
    options, image = size.unet
    pair = r"(down/\d+|middle|up/\d+)"
    rules = {
        f"{pair}/conv1/kernel": (None, None, None, "model"),
        f"{pair}/norm2/(scale|bias)": ("model",),
        f"{pair}/conv2/kernel": (None, None, "model", None),
    }

    def batch(rows: int) -> tuple[Any, Any]:
        images = _floats(rows, image, image, options["numbers"])
        return images, images

    return Planned(functools.partial(planned_modules.UNet, **options), batch, "mse", size.images // 2, rules)


def _state_space(size: Any) -> Planned:
    """As in Megatron-LM, although the parts that come from the joined kernel do not end where its shards do."""
    rules = {
        rf"{_BLOCK}/joined/kernel": (None, "model"),
        rf"{_BLOCK}/conv/kernel": (None, None, "model"),
        rf"{_BLOCK}/out_norm/scale": ("model",),
        rf"{_BLOCK}/out/kernel": ("model", None),
        "embed/embedding": ("model", None),
        "head/kernel": (None, "model"),
    }
    factory = functools.partial(planned_modules.StateSpace, **size.state_space)
    return Planned(factory, token_batch(size.length), TOKENS, size.rows, rules)


def _recommender(size: Any) -> Planned:
    """Rows of tables over all devices, each of which looks up a part of every batch."""
    rules = {r"tables/\d+/embedding": (("data", "model"), None)}

    def batch(rows: int) -> tuple[Any, Any]:
        inputs = {"numbers": _floats(rows, 13), "categories": _ints(rows, len(size.recommender["tables"]))}
        return inputs, _floats(rows, 1)

    factory = functools.partial(planned_modules.Recommender, **size.recommender)
    return Planned(factory, batch, "binary_crossentropy", size.clicks, rules)


def _ours(size: Any) -> Planned:
    rules = {
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
    factory = functools.partial(_our_decoder, size.ours, size.length)
    return Planned(factory, token_batch(size.length), TOKENS, size.rows, rules, is_ours=True)


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


def token_batch(length: int) -> Callable[[int], tuple[Any, Any]]:
    """A batch of tokens, and of those that follow them, for a number of rows."""
    return lambda rows: (_ints(rows, length), _ints(rows, length))


def _images(size: int) -> Callable[[int], tuple[Any, Any]]:
    return lambda rows: (_floats(rows, size, size, 3), _ints(rows))


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
