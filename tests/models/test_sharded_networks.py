"""Networks of the kinds that people train, sharded, against themselves on one device."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests.layouts import MESHES, on, one_device
from tests.soak import ROUNDS, crossed

CLASSES = 4


def of_tokens(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 8 tokens out of 16, some of them 0 at the end; a class for each row."""
    random = np.random.default_rng(0)
    x = random.integers(1, 16, (rows, 8))
    for row, length in zip(x, random.integers(3, 9, rows), strict=True):
        row[length:] = 0
    return x.astype(np.int32), random.integers(0, CLASSES, rows).astype(np.int32)


def next_tokens(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x, _ = of_tokens(rows)
    return x[:, :-1], x[:, 1:]


def of_images(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.normal(size=(rows, 8, 8, 3)).astype(np.float32)
    return images, random.integers(0, CLASSES, rows).astype(np.int32)


class Decoder(layers.Layer):
    """Scores of the tokens of an embedding, which is another layer's."""

    def __init__(self, embedding: layers.Embedding | layers.ReversibleEmbedding, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, hidden: Any) -> Any:
        return hidden @ jnp.transpose(self.embedding.embeddings[...])


def tied() -> kd.Model:
    """A dense layer that is called twice, and an embedding that is called twice and that another layer reads, too."""
    tokens = kd.Input((7,), dtype="int32")
    embedding = layers.ReversibleEmbedding(16, 8, name="embedding")
    shared = layers.Dense(8, activation="tanh", name="d1")
    hidden = shared(shared(embedding(tokens)))
    return kd.Model(tokens, embedding(hidden, reverse=True) + Decoder(embedding, name="scores")(hidden))


def normalised() -> kd.Model:
    return kd.Sequential(
        [
            kd.Input((8, 8, 3)),
            layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.Activation("relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, name="d2"),
        ]
    )


def recurrent() -> kd.Model:
    return kd.Sequential(
        [
            kd.Input((8,), dtype="int32"),
            layers.Embedding(16, 8, mask_zero=True, name="embedding"),
            layers.Bidirectional(layers.LSTM(8), name="lstm") if ROUNDS else layers.LSTM(8, name="lstm"),
            layers.Dense(CLASSES, name="d2"),
        ]
    )


class Block(layers.Layer):
    """Attention and two dense layers, each with a residual."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm1 = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(num_heads=8, key_dim=2, dropout=0.1)
        self.norm2 = layers.LayerNormalization()
        self.up = layers.Dense(16, activation="gelu")
        self.down = layers.Dense(8)

    def call(self, x: Any, training: bool | None = None) -> Any:
        h = self.norm1(x)
        x = x + self.attention(h, h, use_causal_mask=True, training=training)
        return x + self.down(self.up(self.norm2(x)))


class Transformer(kd.Model):
    """A block over embedded tokens; the output layer is the embedding, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(16, 8)
        self.blocks = [Block()]

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, training=training)
        return x @ jnp.transpose(self.embedding.embeddings[...])


NETWORKS: dict[str, tuple[Callable[[], kd.Model], Any, dict[str, tuple[Any, ...]]]] = {
    "tied weights": (tied, next_tokens, {"d1/kernel": (None, "model"), "embedding/embeddings": ("model", None)}),
    "BatchNormalization": (normalised, of_images, {"conv/kernel": (None, None, None, "model")}),
    "an LSTM": (recurrent, of_tokens, {r"lstm/.*kernel": (None, "model")}),
    "a transformer": (
        Transformer,
        next_tokens,
        {
            "embedding/embeddings": ("model", None),
            r"blocks/\d/attention/(query|key|value)/kernel": (None, "model", None),
            r"blocks/\d/attention/(query|key|value)/bias": ("model", None),
            r"blocks/\d/attention/attention_output/kernel": ("model", None, None),
            r"blocks/\d/up/kernel": (None, "model"),
            r"blocks/\d/down/kernel": ("model", None),
        },
    ),
}

MESH_OF = {"tied weights": "data=4,model=2", "BatchNormalization": "data=8,model=1"}
"""Where `make test` trains a network, if not on data=2,model=4."""
PAIRS = crossed(NETWORKS, MESHES) if ROUNDS else [(one, MESH_OF.get(one, "data=2,model=4")) for one in NETWORKS]


def trained(
    make: Callable[[], kd.Model], data: Any, distribution: kd.Distribution, rows: int = 10, batch_size: int = 5
) -> tuple[list[float], kd.Model]:
    """The losses and accuracies of two epochs of batches that no mesh divides, and the model."""
    kd.set_random_seed(11)
    x, y = data(rows)
    with distribution.scope():
        model = make()
        # plain descent: Adam would make rounding errors of zero gradients as large as steps
        model.compile(
            kd.optimizers.SGD(0.1), loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
        history = model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0).history
        return [*history["loss"], *history["accuracy"]], model


ON_ONE_DEVICE: dict[str, tuple[list[float], list[np.ndarray], np.ndarray]] = {}


@pytest.mark.first_cases(1)
@pytest.mark.soak
@pytest.mark.parametrize(("network", "mesh"), PAIRS)
def test_it_equals_itself_on_one_device(network, mesh):
    make, data, rules = NETWORKS[network]
    if network not in ON_ONE_DEVICE:
        losses, model = trained(make, data, one_device())
        ON_ONE_DEVICE[network] = losses, model.get_weights(), model.predict(data(5)[0], verbose=0)
    expected, weights, outputs = ON_ONE_DEVICE[network]
    losses, model = trained(make, data, on(mesh, rules))
    assert np.allclose(losses, expected, rtol=1e-5)
    for ours, theirs in zip(model.get_weights(), weights, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    model.set_weights(weights)  # rounding in weights may be a hundred times as large in outputs
    assert np.allclose(model.predict(data(5)[0], verbose=0), outputs, rtol=1e-5, atol=1e-5)
    sharded = [row for row in model.layout_plan.rows if any(row.axes)]
    assert sharded or mesh == "data=8,model=1" or not rules


def test_what_another_layer_reads_is_one_array():
    tokens, hidden = kd.Input((7,), dtype="int32"), kd.Input((7, 8))
    embedding = layers.Embedding(16, 8, name="embedding")
    scores = Decoder(embedding, name="scores")
    model = kd.Model(tokens, scores(layers.Dense(8, name="d1")(embedding(tokens))))
    assert [weight.shape for weight in model.weights] == [(16, 8), (8, 8), (8,)]
    alone = kd.Model(hidden, scores(hidden))  # the embedding is not called in it
    assert [weight.shape for weight in alone.weights] == [(16, 8)]
    table = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    model.set_weights([table, *model.get_weights()[1:]])
    x = np.ones((2, 7, 8), np.float32)
    assert np.allclose(alone.predict(x, verbose=0), x @ table.T, atol=1e-5)
