"""Recurrent, convolutional and other networks of `memory_bank`."""

import jax
import jax.numpy as jnp
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from tests.planner.memory_transformers import HEAD, HEADS, LENGTH, WIDTH


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


class Dlrm(nnx.Module):
    """Large tables, interactions of their rows, and a small network."""

    def __init__(self, rngs):
        self.tables = nnx.List([nnx.Embed(100_000, 32, rngs=rngs) for _ in range(4)])
        self.hidden, self.out = nnx.Linear(16 + 128, 256, rngs=rngs), nnx.Linear(256, 1, rngs=rngs)

    def __call__(self, ids):
        rows = jnp.stack([table(ids[:, place]) for place, table in enumerate(self.tables)], 1)
        products = jnp.einsum("rid,rjd->rij", rows, rows).reshape(rows.shape[0], -1)
        return self.out(nnx.relu(self.hidden(jnp.concatenate([products, rows.reshape(rows.shape[0], -1)], -1))))


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


def recurrent(layer: str, depth: int):
    def make():
        parts = [getattr(layers, layer)(WIDTH, return_sequences=True) for _ in range(depth)]
        return kd.Sequential([kd.Input((64, WIDTH)), *parts])

    return make
