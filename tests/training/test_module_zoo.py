"""Modules of all kinds train on a 2x4 mesh as on one device."""

import functools

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS
from tests.soak import few

RANDOM = np.random.default_rng(0)
SEQUENCES = RANDOM.normal(size=(16, 6, 16)).astype("float32")
TARGETS = RANDOM.normal(size=(16, 6, 16)).astype("float32")
IMAGES = RANDOM.normal(size=(16, 8, 8, 3)).astype("float32")
LABELS = RANDOM.normal(size=(16, 4)).astype("float32")
TOKENS = RANDOM.integers(0, 32, size=(16, 6))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, dropout_rate=0.1, rngs=rngs)
        self.up = nnx.Linear(16, 64, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(x)))


class FeedForward(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up = nnx.Linear(16, 64, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x):
        return x + self.down(self.drop(nnx.gelu(self.up(self.norm(x)))))


class Scanned(nnx.Module):
    """Blocks whose arrays are stacked, and whose activations are computed again on the way back."""

    def __init__(self, rngs):
        self.blocks = nnx.split_rngs(splits=2)(nnx.vmap(FeedForward, in_axes=(0,), out_axes=0))(rngs)

    def __call__(self, x):
        block_again = nnx.remat(lambda block, x: block(x))
        step = nnx.scan(lambda x, block: block_again(block, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return step(x, self.blocks)


class Convolutional(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))


class TiedEmbedding(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(32, 16, rngs=rngs)
        self.mix = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, tokens):
        return self.embed.attend(self.mix(self.embed(tokens)))


class LinenWithBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(32, name="a")(x)
        x = nn.BatchNorm(use_running_average=not train, use_bias=False, name="norm")(x)
        return nn.Dense(16, name="b")(x)


def bridged(rngs):
    return nnx.bridge.ToNNX(LinenWithBatchNorm(), rngs=rngs).lazy_init(jnp.zeros((1, 6, 16)))


def call_bridged(module, x, training, rngs):
    return module(x, train=True, mutable=["batch_stats"]) if training else module(x, train=False)


MEGATRON = {
    "attention/(query|key|value)/kernel": (None, "model", None),
    "attention/out/kernel": ("model", None, None),
    "up/kernel": (None, "model"),
    "down/kernel": ("model", None),
    "up/output": ("data", None, "model"),
}
ZOO = {
    "transformer": (Transformer, SEQUENCES, TARGETS, MEGATRON, {}),
    "scanned and rematerialised": (Scanned, SEQUENCES, TARGETS, {"blocks/up/kernel": (None, None, "model")}, {}),
    "convolution over space": (Convolutional, IMAGES, LABELS, {"input/x": ("data", "model", None, None)}, {}),
    "tied embedding": (TiedEmbedding, TOKENS, TOKENS, {"embed/embedding": ("model", None)}, {}),
    "linen": (bridged, SEQUENCES, TARGETS, {"a/kernel": (None, "model")}, {"call": call_bridged}),
    "lora": (
        lambda rngs: nnx.LoRALinear(16, 16, lora_rank=2, rngs=rngs),
        SEQUENCES,
        TARGETS,
        {"kernel": (None, "model")},
        {"trainable": nnx.LoRAParam},
    ),
}


def epoch_losses(distribution, name):
    factory, x, y, _, options = ZOO[name]
    loss = LOSS if y is TOKENS else "mse"
    model = layouts.model_on(distribution, factory, seed=1, **options)
    model.compile("adam", loss)
    return model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]


@functools.cache
def alone_losses(factory):
    name = next(name for name, row in ZOO.items() if row[0] is factory)
    return epoch_losses(kd.DataParallel(devices=kd.list_devices()[:1]), name)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", few(ZOO, "transformer", "convolution over space", "lora"))
def test_trains_as_on_one_device(name):
    factory, _, _, rules, _ = ZOO[name]
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    layout_map.update(rules)
    sharded = epoch_losses(kd.ModelParallel(layout_map, "data", strict=True), name)
    alone = alone_losses(factory)
    np.testing.assert_allclose(sharded, alone, rtol=1e-5)
    assert alone[1] < alone[0]
