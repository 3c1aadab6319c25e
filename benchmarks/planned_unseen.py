"""Modules of Flax NNX that are planned and not run here, of kinds that no test of the planner contains."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class TimeMix(nnx.Module):
    """A block that mixes each position with the one before, and sums over time in a loop.

    Source: Peng et al. 2023, arXiv:2305.13048 (RWKV), with the sums of `v * exp(k)` and `exp(k)`.
    """

    def __init__(self, embed: int, mlp: int, rngs: nnx.Rngs) -> None:
        def linear(one: int, other: int) -> nnx.Linear:
            return nnx.Linear(one, other, use_bias=False, rngs=rngs)

        self.norm1, self.norm2 = nnx.LayerNorm(embed, rngs=rngs), nnx.LayerNorm(embed, rngs=rngs)
        self.mixes = nnx.Param(jnp.full((5, embed), 0.5))
        self.decay, self.bonus = nnx.Param(jnp.zeros(embed)), nnx.Param(jnp.zeros(embed))
        self.key, self.value, self.receptance = (linear(embed, embed) for _ in range(3))
        self.out, self.up, self.gate, self.down = (
            linear(embed, embed), linear(embed, mlp), linear(embed, embed), linear(mlp, embed)
        )  # fmt: skip

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, time, embed) to the same."""
        x = x + self._over_time(self.norm1(x))
        given = self.norm2(x)
        hidden = jnp.square(jax.nn.relu(self.up(self._mixed(given, 3))))
        return x + jax.nn.sigmoid(self.gate(self._mixed(given, 4))) * self.down(hidden)

    def _mixed(self, x: jax.Array, index: int) -> jax.Array:
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        mix = self.mixes[...][index]
        return x * mix + before * (1 - mix)

    def _over_time(self, x: jax.Array) -> jax.Array:
        key, value = self.key(self._mixed(x, 0)), self.value(self._mixed(x, 1))
        weights, keep = jnp.exp(jnp.minimum(key, 10.0)), jnp.exp(-jnp.exp(self.decay[...]))
        bonus = jnp.exp(self.bonus[...])

        def turn(sums: tuple[jax.Array, jax.Array], given: tuple[jax.Array, jax.Array]) -> Any:
            (top, bottom), (weight, value) = sums, given
            result = (top + bonus * weight * value) / (bottom + bonus * weight + 1e-6)
            return (keep * top + weight * value, keep * bottom + weight), result

        zeros = jnp.zeros_like(x[:, 0])
        _, mixed = jax.lax.scan(turn, (zeros, zeros), (weights.swapaxes(0, 1), value.swapaxes(0, 1)))
        return self.out(jax.nn.sigmoid(self.receptance(self._mixed(x, 2))) * mixed.swapaxes(0, 1))


class TimeMixDecoder(nnx.Module):
    """A decoder without attention."""

    def __init__(self, vocab: int, embed: int, mlp: int, layers: int, *, rngs: nnx.Rngs) -> None:
        self.embed, self.norm = nnx.Embed(vocab, embed, rngs=rngs), nnx.LayerNorm(embed, rngs=rngs)
        self.blocks = nnx.List([TimeMix(embed, mlp, rngs) for _ in range(layers)])
        self.head = nnx.Linear(embed, vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of tokens (batch, time)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Segmenter(nnx.Module):
    """Depthwise and pointwise convolutions down and up again, whose results are added across.

    Source: Ronneberger et al. 2015, arXiv:1505.04597; Howard et al. 2017, arXiv:1704.04861.
    """

    def __init__(self, channels: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> None:
        pairs = [*itertools.pairwise(channels)]
        self.begin = nnx.Conv(3, channels[0], (3, 3), rngs=rngs)
        self.down = nnx.List([_separable(one, other, rngs) for one, other in pairs])
        self.up = nnx.List([nnx.ConvTranspose(other, one, (2, 2), strides=(2, 2), rngs=rngs) for one, other in pairs])
        self.end = nnx.Conv(channels[0], classes, (1, 1), rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of each pixel of images (batch, height, width, 3)."""
        x, kept = self.begin(images), list[jax.Array]()
        for layer in self.down:
            kept.append(x)
            x = nnx.max_pool(layer(x), (2, 2), strides=(2, 2))
        for layer in [*self.up][::-1]:
            x = jax.nn.relu(layer(x)) + kept.pop()
        return self.end(x)


def _separable(given: int, made: int, rngs: nnx.Rngs) -> nnx.Sequential:
    depthwise = nnx.Conv(given, given, (5, 5), feature_group_count=given, rngs=rngs)
    pointwise, project = nnx.Conv(given, 4 * made, (1, 1), rngs=rngs), nnx.Conv(4 * made, made, (1, 1), rngs=rngs)
    return nnx.Sequential(depthwise, nnx.BatchNorm(given, rngs=rngs), pointwise, jax.nn.gelu, project)


class TwoTowers(nnx.Module):
    """Users and items, each with an embedding and an MLP; scores are products with all items of the batch.

    Source: Yi et al. 2019, doi:10.1145/3298689.3346996.
    """

    def __init__(self, users: int, items: int, embed: int, mlp: int, *, rngs: nnx.Rngs) -> None:
        self.users, self.items = nnx.Embed(users, embed, rngs=rngs), nnx.Embed(items, embed, rngs=rngs)
        self.user_up, self.item_up = nnx.Linear(embed, mlp, rngs=rngs), nnx.Linear(embed, mlp, rngs=rngs)
        self.user_down, self.item_down = nnx.Linear(mlp, embed, rngs=rngs), nnx.Linear(mlp, embed, rngs=rngs)

    def __call__(self, inputs: dict[str, jax.Array]) -> jax.Array:
        """Scores (batch, batch) of `user` (batch, history) and `item` (batch,)."""
        user = self.user_down(jax.nn.relu(self.user_up(self.users(inputs["user"]).mean(1))))
        item = self.item_down(jax.nn.relu(self.item_up(self.items(inputs["item"]))))
        return user @ item.T


class WindowBlock(nnx.Module):
    """Attention inside of windows, shifted in every second block, with a bias for each pair of places."""

    def __init__(self, embed: int, heads: int, window: int, is_shifted: bool, rngs: nnx.Rngs) -> None:
        self.window, self.shift = window, window // 2 * is_shifted
        self.norm1, self.norm2 = nnx.LayerNorm(embed, rngs=rngs), nnx.LayerNorm(embed, rngs=rngs)
        self.query, self.key, self.value = (
            nnx.LinearGeneral(embed, (heads, embed // heads), rngs=rngs) for _ in range(3)
        )
        self.out = nnx.LinearGeneral((heads, embed // heads), embed, axis=(-2, -1), rngs=rngs)
        self.bias = nnx.Param(jnp.zeros((heads, window**2, window**2)))
        self.up, self.down = nnx.Linear(embed, 4 * embed, rngs=rngs), nnx.Linear(4 * embed, embed, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` (batch, height, width, embed) to the same."""
        given = jnp.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        batch, height, width, embed = given.shape
        rows, columns, size = height // self.window, width // self.window, self.window
        windows = given.reshape(batch, rows, size, columns, size, embed).swapaxes(2, 3)
        windows = windows.reshape(batch, rows * columns, size * size, embed)
        query, key, value = self.query(windows), self.key(windows), self.value(windows)
        scores = jnp.einsum("bwqnh,bwknh->bwnqk", query, key) * query.shape[-1] ** -0.5 + self.bias[...]
        mixed = self.out(jnp.einsum("bwnqk,bwknh->bwqnh", jax.nn.softmax(scores), value))
        mixed = mixed.reshape(batch, rows, columns, size, size, embed).swapaxes(2, 3).reshape(given.shape)
        x = x + jnp.roll(mixed, (self.shift, self.shift), (1, 2))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class WindowTransformer(nnx.Module):
    """A vision transformer with windows, whose patches are joined once.

    Source: Liu et al. 2021, arXiv:2103.14030 (Swin).
    """

    def __init__(self, embed: int, heads: int, window: int, classes: int, *, rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, embed, (4, 4), strides=(4, 4), rngs=rngs)
        self.first = nnx.List([WindowBlock(embed, heads, window, bool(index), rngs) for index in range(2)])
        self.join = nnx.Linear(4 * embed, 2 * embed, use_bias=False, rngs=rngs)
        self.second = nnx.List([WindowBlock(2 * embed, 2 * heads, window, bool(index), rngs) for index in range(2)])
        self.norm, self.head = nnx.LayerNorm(2 * embed, rngs=rngs), nnx.Linear(2 * embed, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of images (batch, height, width, 3)."""
        x = self.patches(images)
        for block in self.first:
            x = block(x)
        batch, height, width, embed = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, embed).swapaxes(2, 3)
        x = self.join(x.reshape(batch, height // 2, width // 2, 4 * embed))
        for block in self.second:
            x = block(x)
        return self.head(self.norm(x).mean((1, 2)))
