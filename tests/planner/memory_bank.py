"""Models whose train steps are planned and compiled, to compare the planned memory with XLA's; see `memory_records`."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.planner import propagate
from keras_dist.planner.compiled import figures
from keras_dist.planner.targets import as_target, devices
from keras_dist.planner.tracing import StepProgram, trace_step
from tests.planner.memory_records import Comparison

WIDTH, HEADS, VOCAB, LENGTH, ROWS = 256, 8, 2048, 256, 1024  # intermediate results far larger than the 128 MiB of VMEM
HEAD = WIDTH // HEADS
CROSSENTROPY = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its batch; `layouts` are names of `LAYOUTS`."""

    factory: Callable[..., Any]
    batch: Any
    layouts: tuple[str, ...] = ("data", "fsdp")
    loss: Any = None


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """An array of this shape that is not allocated."""
    return jax.ShapeDtypeStruct(shape, dtype)


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


class Mlp(nnx.Module):
    def __init__(self, rngs, width=1024, depth=6):
        self.parts = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        for part in self.parts:
            x = nnx.relu(part(x))
        return x


class Reshaped(nnx.Module):
    """24 linear layers with reshapes between them."""

    def __init__(self, rngs):
        self.parts = nnx.List([nnx.Linear(512, 512, rngs=rngs) for _ in range(24)])

    def __call__(self, x):
        shape = x.shape
        for part in self.parts:
            x = part(x.reshape(-1, 512)).reshape(shape)
        return x


class Stages(nnx.Module):
    """Six scans of layers with one kernel each."""

    def __init__(self, rngs):
        self.parts = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(6)])

    def __call__(self, x):
        for part in self.parts:
            x, _ = jax.lax.scan(lambda x, _, part=part: (jnp.tanh(part(x)) + x, None), x, length=16)
        return x


class StateSpace(nnx.Module):
    """A selective state space, scanned over time."""

    def __init__(self, rngs, states=16):
        self.project = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.rates = nnx.Linear(WIDTH, 2 * states + 1, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.decay = nnx.Param(jnp.ones((WIDTH, states)))
        self.states = states

    def __call__(self, x):
        inputs, gate = jnp.split(self.project(x), 2, axis=-1)
        step, into, out = jnp.split(self.rates(inputs), (1, 1 + self.states), axis=-1)
        step = nnx.softplus(step)

        def turn(state, now):
            u, dt, b, c = now
            state = state * jnp.exp(-dt[..., None] * self.decay[...]) + (dt * u)[..., None] * b[:, None, :]
            return state, jnp.einsum("rws,rs->rw", state, c)

        first = jnp.zeros((x.shape[0], WIDTH, self.states))
        over_time = jax.tree.map(lambda each: jnp.moveaxis(each, 1, 0), (inputs, step, into, out))
        _, found = jax.lax.scan(turn, first, over_time)
        return x + self.out(jnp.moveaxis(found, 0, 1) * nnx.silu(gate))


class ChunkedStateSpace(nnx.Module):
    """State space duality: products inside of chunks, a scan over chunks."""

    def __init__(self, rngs, states=32, chunk=32):
        self.project = nnx.Linear(WIDTH, WIDTH + 2 * states + HEADS, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.states, self.chunk = states, chunk

    def __call__(self, x):
        rows, length, _ = x.shape
        values, into, out, rate = jnp.split(self.project(x), (WIDTH, WIDTH + self.states, WIDTH + 2 * self.states), -1)
        shape = (rows, length // self.chunk, self.chunk)
        values, into, out = (each.reshape(*shape, -1) for each in (values, into, out))
        values = values.reshape(*shape, HEADS, HEAD)
        logs = jnp.cumsum(-nnx.softplus(rate).reshape(*shape, HEADS), axis=2)
        kept = jnp.exp(logs[:, :, :, None] - logs[:, :, None]) * jnp.tri(self.chunk)[None, None, :, :, None]
        inside = jnp.einsum("bcis,bcjs,bcijh,bcjhd->bcihd", out, into, kept, values)
        states = jnp.einsum("bcjs,bcjh,bcjhd->bchds", into, jnp.exp(logs[:, :, -1:] - logs), values)

        def turn(state, now):
            new, decay = now
            return state * decay[..., None, None] + new, state

        moved = jax.tree.map(lambda each: jnp.moveaxis(each, 1, 0), (states, jnp.exp(logs[:, :, -1])))
        _, before = jax.lax.scan(turn, jnp.zeros_like(states[:, 0]), moved)
        across = jnp.einsum("bcis,cbhds,bcih->bcihd", out, before, jnp.exp(logs))
        return x + self.out((inside + across).reshape(rows, length, WIDTH))


class Stack(nnx.Module):
    """Modules, one after the other."""

    def __init__(self, rngs, make, depth=4):
        self.parts = nnx.List([make(rngs) for _ in range(depth)])

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return x


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


class Dlrm(nnx.Module):
    """Large tables, interactions of their rows, and a small network."""

    def __init__(self, rngs):
        self.tables = nnx.List([nnx.Embed(100_000, 32, rngs=rngs) for _ in range(4)])
        self.hidden, self.out = nnx.Linear(16 + 128, 256, rngs=rngs), nnx.Linear(256, 1, rngs=rngs)

    def __call__(self, ids):
        rows = jnp.stack([table(ids[:, place]) for place, table in enumerate(self.tables)], 1)
        products = jnp.einsum("rid,rjd->rij", rows, rows).reshape(rows.shape[0], -1)
        return self.out(nnx.relu(self.hidden(jnp.concatenate([products, rows.reshape(rows.shape[0], -1)], -1))))


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


class Unet(nnx.Module):
    def __init__(self, rngs, width=32):
        sizes = [width, 2 * width, 4 * width]
        self.first = nnx.Conv(3, width, (3, 3), rngs=rngs)
        self.down = nnx.List([nnx.Conv(a, 2 * a, (3, 3), (2, 2), rngs=rngs) for a in sizes])
        self.norms = nnx.List([nnx.GroupNorm(2 * a, num_groups=8, rngs=rngs) for a in sizes])
        self.up = nnx.List([nnx.ConvTranspose(2 * a, a, (3, 3), (2, 2), rngs=rngs) for a in sizes])
        self.join = nnx.List([nnx.Conv(2 * a, a, (3, 3), rngs=rngs) for a in sizes])
        self.last = nnx.Conv(width, 3, (3, 3), rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        kept = []
        for down, norm in zip(self.down, self.norms, strict=True):
            kept.append(x)
            x = nnx.silu(norm(down(x)))
        for up, join, before in reversed(list(zip(self.up, self.join, kept, strict=True))):
            x = nnx.silu(join(jnp.concatenate([up(x), before], -1)))
        return self.last(x)


class Bottleneck(nnx.Module):
    def __init__(self, rngs, width, inputs, stride):
        self.first, self.second = (
            nnx.Conv(inputs, width, (1, 1), rngs=rngs),
            nnx.Conv(width, width, (3, 3), stride, rngs=rngs),
        )
        self.third = nnx.Conv(width, 4 * width, (1, 1), rngs=rngs)
        self.short = nnx.Conv(inputs, 4 * width, (1, 1), stride, rngs=rngs)
        self.norms = nnx.List([nnx.BatchNorm(size, rngs=rngs) for size in (width, width, 4 * width, 4 * width)])

    def __call__(self, x):
        first, second, third, short = self.norms
        y = nnx.relu(first(self.first(x)))
        y = nnx.relu(second(self.second(y)))
        return nnx.relu(third(self.third(y)) + short(self.short(x)))


class Resnet(nnx.Module):
    def __init__(self, rngs, width=32):
        self.first, self.norm = nnx.Conv(3, width, (7, 7), 2, rngs=rngs), nnx.BatchNorm(width, rngs=rngs)
        sizes = [(width, width, 1), (width, 4 * width, 1), (2 * width, 4 * width, 2), (2 * width, 8 * width, 1)]
        self.blocks = nnx.List([Bottleneck(rngs, *each) for each in sizes])
        self.head = nnx.Linear(8 * width, 100, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.first(x))), (3, 3), (2, 2), "SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Mixer(nnx.Module):
    """MLPs over positions and over features."""

    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.first = nnx.List([nnx.Linear(LENGTH, 2 * LENGTH, rngs=rngs), nnx.Linear(2 * LENGTH, LENGTH, rngs=rngs)])
        self.second = nnx.List([nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)])

    def __call__(self, x):
        y = jnp.swapaxes(self.norms[0](x), 1, 2)
        x = x + jnp.swapaxes(self.first[1](nnx.gelu(self.first[0](y))), 1, 2)
        return x + self.second[1](nnx.gelu(self.second[0](self.norms[1](x))))


class Wavenet(nnx.Module):
    """Dilated convolutions over time, gated."""

    def __init__(self, rngs, width=64):
        self.parts = nnx.List(
            [nnx.Conv(width, 2 * width, (2,), kernel_dilation=2**n, rngs=rngs, padding="CAUSAL") for n in range(6)]
        )
        self.outs = nnx.List([nnx.Conv(width, width, (1,), rngs=rngs) for _ in range(6)])

    def __call__(self, x):
        for part, out in zip(self.parts, self.outs, strict=True):
            value, gate = jnp.split(part(x), 2, -1)
            x = x + out(jnp.tanh(value) * nnx.sigmoid(gate))
        return x


class Dropped(nnx.Module):
    """Blocks with dropout."""

    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs, is_causal=False, is_gated=False) for _ in range(3)])
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = self.drop(block(x))
        return x


def recurrent(layer: str, depth: int):
    def make():
        parts = [getattr(layers, layer)(WIDTH, return_sequences=True) for _ in range(depth)]
        return kd.Sequential([kd.Input((64, WIDTH)), *parts])

    return make


def bert():
    inputs = kd.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCAB, WIDTH)(inputs)
    for index in range(3):
        y = layers.MultiHeadAttention(HEADS, HEAD, name=f"attention_{index}")(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
        y = layers.Dense(4 * WIDTH, activation="gelu", name=f"up_{index}")(x)
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH, name=f"down_{index}")(y))
    return kd.Model(inputs, layers.Dense(VOCAB, name="head")(x))


TOKENS, HALF = (array(rows, LENGTH, dtype="int32") for rows in (ROWS, ROWS // 2))
SEQUENCES = array(ROWS, LENGTH, WIDTH)
IMAGES, LABELS = array(ROWS, 128, 128, 3), array(ROWS, dtype="int32")
TEXT = ((TOKENS, TOKENS), ("data", "fsdp", "megatron", "hybrid"), CROSSENTROPY)
ACTIVATIONS = ((SEQUENCES, SEQUENCES), ("data", "fsdp"), "mse")
PLAIN = ((SEQUENCES, SEQUENCES), ("data", "fsdp", "megatron"), "mse")

BANK = {
    "MLP": Case(Mlp, (array(2**18, 1024), array(2**18, 1024)), loss="mse"),
    "24 linear layers": Case(Reshaped, (array(4 * ROWS, 64, 512), array(4 * ROWS, 64, 512)), loss="mse"),
    "8 LSTM": Case(recurrent("LSTM", 8), (array(4 * ROWS, 64, WIDTH), array(4 * ROWS, 64, WIDTH)), loss="mse"),
    "3 GRU": Case(recurrent("GRU", 3), (array(4 * ROWS, 64, WIDTH), array(4 * ROWS, 64, WIDTH)), loss="mse"),
    "scanned stages": Case(Stages, *ACTIVATIONS),
    "state space": Case(lambda rngs: Stack(rngs, StateSpace, 2), *ACTIVATIONS),
    "chunked state space": Case(lambda rngs: Stack(rngs, ChunkedStateSpace), *ACTIVATIONS),
    "decoder": Case(Decoder, *TEXT),
    "decoder, scanned": Case(functools.partial(Decoder, is_scanned=True), *TEXT),
    "decoder, remat": Case(functools.partial(Decoder, is_repeated=True), *TEXT),
    "decoder, scanned, remat": Case(functools.partial(Decoder, is_scanned=True, is_repeated=True), *TEXT),
    "decoder, many tokens": Case(functools.partial(Decoder, vocab=32768, depth=2), (HALF, HALF), *TEXT[1:]),
    "encoder-decoder": Case(EncoderDecoder, *TEXT),
    "GPT-2": Case(lambda rngs: Stack(rngs, Fused), *PLAIN),
    "BERT": Case(bert, (TOKENS, TOKENS), ("data", "fsdp", "megatron"), CROSSENTROPY),
    "dropout": Case(Dropped, *PLAIN),
    "ViT": Case(
        Vit, (array(ROWS, 128, 128, 3), array(ROWS, dtype="int32")), ("data", "fsdp", "megatron"), CROSSENTROPY
    ),
    "DiT": Case(Dit, *PLAIN),
    "mixer": Case(lambda rngs: Stack(rngs, Mixer), *ACTIVATIONS),
    "experts": Case(lambda rngs: Stack(rngs, Experts, 2), *ACTIVATIONS),
    "U-Net": Case(Unet, (array(2 * ROWS, 64, 64, 3), array(2 * ROWS, 64, 64, 3)), loss="mse"),
    "ResNet": Case(Resnet, (array(2 * ROWS, 64, 64, 3), array(2 * ROWS, dtype="int32")), loss=CROSSENTROPY),
    "WaveNet": Case(Wavenet, (array(ROWS, 1024, 64), array(ROWS, 1024, 64)), loss="mse"),
    "DLRM": Case(Dlrm, (array(65536, 4, dtype="int32"), array(65536, 1)), loss="mse"),
}


def megatron(devices: Any, is_stacked: bool) -> kd.LayoutMap:
    """Return rules for heads, hidden dims and the vocabulary, of modules in a list or stacked."""
    rules, stack = kd.LayoutMap(kd.DeviceMesh("data=2,model=4", devices=devices)), (None,) * is_stacked
    rules[r".*(query|key|value)/kernel"] = (*stack, None, "model", None)
    rules[r".*(query|key|value)/bias"] = (*stack, "model", None)
    rules[r".*attention_output/kernel"] = (*stack, "model", None, None)
    rules[r".*(attention|across|attentions/\d+|across/\d+)/out/kernel"] = (*stack, "model", None, None)
    rules[r".*(up(_\d)?|gate|qkv|ups/\d+)/kernel"] = (*stack, None, "model")
    rules[r".*(up(_\d)?|gate|qkv|ups/\d+)/bias"] = (*stack, "model")
    rules[r".*(down(_\d)?|downs/\d+|parts/\d+/out)/kernel"] = (*stack, "model", None)
    rules[r"embed/embedding|embedding/embeddings"] = ("model", None)
    rules[r"head/kernel"] = (None, "model")
    return rules


def distributed(name: str, target: str, is_stacked: bool) -> kd.Distribution:
    """Return the distribution of this name over 8 devices of a target."""
    if name in ("data", "fsdp"):
        mesh = kd.DeviceMesh("data=8", devices=devices(target, (8,)))
        return kd.FullySharded(mesh) if name == "fsdp" else kd.DataParallel(mesh)
    rules = megatron(devices(target, (2, 4)), is_stacked)
    if name == "hybrid":
        return kd.FullySharded(rules.device_mesh, "data", rules)
    return kd.ModelParallel(rules, batch_dim_name="data")


def traced(name: str, layout: str, target: str, rows: int | None = None) -> StepProgram:
    """Return the traced step of a case, for batches of so many rows."""
    case, platform = BANK[name], as_target(target).platform
    batch = jax.tree.map(lambda each: array(rows or each.shape[0], *each.shape[1:], dtype=each.dtype), case.batch)
    distribution = distributed(layout, target, "scanned" in name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rules that match nothing
        return trace_step(case.factory, batch, distribution, "adam", case.loss, platform=platform)


def compared(name: str, layout: str, target: str, rows: int | None = None, timeout_seconds: float = 3000) -> Comparison:
    """Plan and compile a case."""
    program = traced(name, layout, target, rows)
    estimate = propagate(program.lowered).activation_nbytes
    found = figures(program, target, timeout_seconds=timeout_seconds)
    state = found.argument_nbytes + max(0, found.output_nbytes - found.alias_nbytes)
    rows = rows or jax.tree.leaves(BANK[name].batch)[0].shape[0]
    return Comparison(name, layout, rows, state, estimate, found.temp_nbytes)
