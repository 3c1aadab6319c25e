"""Small models whose best layout is known, written with Flax NNX, Linen and our layers, and with other names."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import keras_dist as kd
from keras_dist import layers

WIDTH, HIDDEN, HEADS, POSITIONS, ROWS, VOCAB = 64, 256, 4, 6, 8, 96
X = np.zeros((ROWS, WIDTH), np.float32)
SEQUENCES = np.zeros((ROWS, POSITIONS, WIDTH), np.float32)
TOKENS = np.zeros((ROWS, POSITIONS), np.int32)
IMAGES = np.zeros((ROWS, 8, 8, 3), np.float32)
CLASSES = np.zeros(ROWS, np.int32)
CROSSENTROPY = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


class LinenMlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(WIDTH)(nn.relu(nn.Dense(HIDDEN)(x)))


def our_mlp():
    return kd.Sequential(
        [kd.Input((WIDTH,)), layers.Dense(HIDDEN, activation="relu", name="up"), layers.Dense(WIDTH, name="down")]
    )


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class RenamedBlock(nnx.Module):
    """`Block` with other names, one projection for each of queries, keys and values, and reshapes."""

    def __init__(self, rngs):
        self.z, self.y, self.x, self.vocab = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(4))
        self.a, self.b = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.second, self.first = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, inputs):
        normed = self.a(inputs)
        split = (ROWS, POSITIONS, HEADS, WIDTH // HEADS)
        queries, keys, values = (project(normed).reshape(split) for project in (self.z, self.y, self.x))
        attended = jax.nn.dot_product_attention(queries, keys, values)
        inputs = inputs + self.vocab(attended.reshape(inputs.shape))
        return inputs + self.first(nnx.gelu(self.second(self.b(inputs))))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x))
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(x))))


def our_block():
    inputs = kd.Input((POSITIONS, WIDTH))
    normed = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="attention")(normed, normed)
    hidden = layers.Dense(HIDDEN, activation="gelu", name="up")(layers.LayerNormalization()(x))
    return kd.Model(inputs, x + layers.Dense(WIDTH, name="down")(hidden))


def linen(module, x):
    """A factory of a module of Linen."""
    return lambda rngs: nnx.bridge.ToNNX(module(), rngs=rngs).lazy_init(x)


class Decoder(nnx.Module):
    """Two blocks, as a list or scanned, with tied embeddings."""

    def __init__(self, scanned, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.scanned = scanned
        if scanned:
            self.blocks = nnx.vmap(lambda key: Block(nnx.Rngs(key)))(jax.random.split(rngs.params(), 2))
        else:
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, tokens):
        x = self.embed(tokens)
        if self.scanned:
            x = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
        else:
            for block in self.blocks:
                x = block(x)
        return self.embed.attend(x)


class Residual(nnx.Module):
    """Three MLPs, each added to its input."""

    def __init__(self, rngs):
        self.blocks = nnx.List([Mlp(rngs) for _ in range(3)])

    def __call__(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class FewKeys(nnx.Module):
    """Attention with 8 heads of queries, and 2 of keys and values."""

    def __init__(self, rngs):
        self.query, self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.key, self.value = nnx.Linear(WIDTH, 16, rngs=rngs), nnx.Linear(WIDTH, 16, rngs=rngs)

    def __call__(self, x):
        queries = self.query(x).reshape(*x.shape[:2], 8, 8)
        keys, values = (project(x).reshape(*x.shape[:2], 2, 8) for project in (self.key, self.value))
        return x + self.out(jax.nn.dot_product_attention(queries, keys, values).reshape(x.shape))


class FewKeysDecoder(nnx.Module):
    """`FewKeys` on tokens of a large vocabulary."""

    def __init__(self, rngs, vocab=4096):
        self.embed, self.block = nnx.Embed(vocab, WIDTH, rngs=rngs), FewKeys(rngs)
        self.head = nnx.Linear(WIDTH, vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.block(self.embed(tokens)))


class Convnet(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Conv(3, 16, (3, 3), rngs=rngs), nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.norm, self.head = nnx.BatchNorm(16, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.second(nnx.relu(self.norm(self.first(x)))))
        return self.head(jnp.mean(x, (1, 2)))


class Lookup(nnx.Module):
    """An embedding that is most of the model."""

    def __init__(self, rngs):
        self.table, self.head = nnx.Embed(8192, 6, rngs=rngs), nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.table(tokens).mean(1))
