"""`Model.from_keras`: model objects of Keras, trained here and there, with the same numbers."""

import gc

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.checkpoint import CheckpointManager
from keras_dist.errors import ModelError

MESH = (4, 2)


def functional(keras):
    """Convolution, statistics, Dropout, a penalty."""
    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3, name="c", use_bias=False)(x)
    y = keras.layers.BatchNormalization(name="bn")(y)
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(y))
    y = keras.layers.Dropout(0.3, seed=1)(y)
    return keras.Model(x, keras.layers.Dense(4, name="d", kernel_regularizer="l2", bias_constraint="max_norm")(y))


def subclassed(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.inner = keras.layers.Dense(8, activation="relu", name="a")
            self.twin = keras.layers.Dense(8, activation="relu", name="a")
            self.outer = keras.layers.Dense(4, name="b")
            self.drop = keras.layers.Dropout(0.5, seed=3)

        def call(self, x, training=False):
            x = self.drop(self.twin(self.inner(keras.ops.reshape(x, (-1, 192)))), training=training)
            self.add_loss(0.1 * keras.ops.mean(x**2))
            return self.outer(x)

    model = Net()
    model(np.zeros((1, 8, 8, 3), "float32"))
    return model


def backbone(keras):
    """A model as KerasHub makes it: a subclass of a functional model with a config, dict inputs and tied weights."""

    class Block(keras.layers.Layer):
        def __init__(self, heads, **kwargs):
            super().__init__(**kwargs)
            self.supports_masking = True
            self.heads = heads

        def build(self, shape):
            self.attention = keras.layers.MultiHeadAttention(self.heads, shape[-1] // self.heads, name="attention")
            self.attention.build(shape, shape)
            self.norm = keras.layers.LayerNormalization(name="norm")
            self.norm.build(shape)

        def call(self, x, padding_mask=None):
            mask = None if padding_mask is None else padding_mask[:, None, :]
            return self.norm(x + self.attention(x, x, attention_mask=mask, use_causal_mask=True))

    class Backbone(keras.Model):
        def __init__(self, vocabulary_size, hidden_dim, heads, **kwargs):
            tokens = keras.Input((None,), dtype="int32", name="token_ids")
            padding = keras.Input((None,), dtype="bool", name="padding_mask")
            embedding = keras.layers.ReversibleEmbedding(vocabulary_size, hidden_dim, name="token_embedding")
            x = embedding(tokens)
            for number in range(2):
                x = Block(heads, name=f"transformer_layer_{number}")(x, padding_mask=padding)
            super().__init__({"token_ids": tokens, "padding_mask": padding}, embedding(x, reverse=True), **kwargs)
            self.settings = {"vocabulary_size": vocabulary_size, "hidden_dim": hidden_dim, "heads": heads}

        def get_config(self):
            return {**super().get_config(), **self.settings}

        @classmethod
        def from_preset(cls, preset):
            return cls(**preset["config"])

    return Backbone.from_preset({"config": {"vocabulary_size": 16, "hidden_dim": 8, "heads": 2, "name": "backbone"}})


def images(keras):
    random = np.random.default_rng(0)
    return random.normal(size=(32, 8, 8, 3)).astype("float32"), random.integers(0, 4, 32, "int32")


def texts(keras):
    random = np.random.default_rng(0)
    tokens = random.integers(0, 16, (32, 6)).astype("int32")
    return {"token_ids": tokens, "padding_mask": np.arange(6) < random.integers(2, 7, (32, 1))}, tokens


CASES = {functional: images, subclassed: images, backbone: texts}
WHERE = {
    "model parallel": lambda: kd.ModelParallel(
        kd.LayoutMap(kd.DeviceMesh(MESH, ("data", "model"))), batch_dim_name="data"
    ),
    "fully sharded": lambda: kd.FullySharded(kd.DeviceMesh(MESH, ("data", "model")), axis="data"),
}


def distribution(where, rules=()):
    found = WHERE[where]()
    for path, axes in dict(rules).items():
        found.layout_map[path] = axes
    return found


def crossentropy(library):
    return library.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("make", "optimizer", "where"),
    [
        (functional, "Adam", "model parallel"),
        (subclassed, "SGD", "model parallel"),
        (backbone, "Adam", "fully sharded"),
    ],
)
def test_training_gives_the_numbers_of_keras(keras, make, optimizer, where):
    theirs, (x, y) = make(keras), CASES[make](keras)
    twin = make(keras)
    twin.set_weights(theirs.get_weights())
    theirs.compile(getattr(keras.optimizers, optimizer)(0.01), crossentropy(keras), metrics=["accuracy"])
    with distribution(where, {r".*d/kernel": (None, "model")} if make is functional else {}).scope():
        ours = kd.Model.from_keras(twin)
    ours.compile(getattr(kd.optimizers, optimizer)(0.01), crossentropy(kd), metrics=["accuracy"])
    expected = theirs.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    found = ours.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, rtol=1e-5, err_msg=name)
    for weight, value in zip(ours.weights, theirs.get_weights(), strict=True):
        np.testing.assert_allclose(weight.numpy(), value, atol=1e-5, rtol=1e-5, err_msg=weight.path)
    np.testing.assert_allclose(ours.evaluate(x, y, verbose=0), theirs.evaluate(x, y, verbose=0), atol=1e-5)
    predictions = ours.predict(x, verbose=0)
    np.testing.assert_allclose(predictions, theirs.predict(x, verbose=0), atol=1e-5)
    before = [np.array(value) for value in twin.get_weights()]
    assert ours.to_keras() is twin
    assert not all(map(np.array_equal, before, twin.get_weights()))
    np.testing.assert_allclose(twin.predict(x, verbose=0), predictions, atol=1e-5)


RULES = {"sequential/dense/kernel": (None, "model"), ".*dense_1/kernel": ("model", None)}


def named(keras, name="sequential", **first):
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten()]
    layers += [keras.layers.Dense(16, "tanh", name="dense", **first), keras.layers.Dense(4, name="dense_1")]
    return keras.Sequential(layers, name=name)


def test_rules_know_the_paths_of_keras_and_no_device_holds_a_whole_copy(keras):
    theirs = named(keras)
    gc.collect()
    with distribution("model parallel", RULES).scope():
        ours = kd.Model.from_keras(theirs)
    assert [weight.path for weight in ours.weights] == [variable.path for variable in theirs.weights]
    rows = {row.path: (row.axes, row.rule) for row in ours.layout_plan.rows}
    assert rows["sequential/dense/kernel"] == ((None, "model"), "sequential/dense/kernel")
    assert rows["sequential/dense_1/kernel"] == (("model", None), ".*dense_1/kernel")
    whole = [array for array in jax.live_arrays() if array.shape == (192, 16) and array.is_fully_replicated]
    assert not whole
    assert {shard.data.shape for shard in ours.weights[0].value.addressable_shards} == {(192, 8)}
    np.testing.assert_array_equal(ours.weights[0].numpy(), theirs.get_weights()[0])
    lines: list[str] = []
    ours.summary(print_fn=lines.append)
    assert "dense_1/kernel" in lines[0]


def test_what_was_trained_is_saved_by_both_and_planned(keras, tmp_path):
    theirs, (x, y) = named(keras), images(keras)
    theirs.compile(keras.optimizers.Adam(0.02), crossentropy(keras), metrics=["accuracy"])
    with distribution("model parallel", RULES).scope():
        ours = kd.Model.from_keras(theirs)
    ours.compile()
    assert type(ours.optimizer) is kd.optimizers.Adam
    assert float(ours.optimizer.learning_rate) == pytest.approx(0.02)
    rows = ours.plan(x[:16], y[:16], compiles=False).state.rows
    kernel_and_slots = [row.axes for row in rows if row.path.endswith("dense/kernel")]
    assert kernel_and_slots == [(None, "model")] * 3
    ours.fit(x, y, batch_size=16, verbose=0)
    expected = ours.predict(x, verbose=0)
    path = tmp_path / "theirs.keras"
    ours.to_keras().save(path)
    np.testing.assert_allclose(keras.saving.load_model(path).predict(x, verbose=0), expected, atol=1e-6)
    for name in ("ours", "ours.keras"):
        with pytest.raises(ModelError, match="is saved by Keras") as caught:
            ours.save(tmp_path / name)
        assert "to_keras().save" in caught.value.fix
    with CheckpointManager(ours, tmp_path / "ours") as manager:
        manager.save()
    ours.fit(x, y, batch_size=16, verbose=0)
    assert not np.allclose(ours.predict(x, verbose=0), expected)
    np.testing.assert_allclose(theirs.predict(x, verbose=0), expected, atol=1e-6)  # as of the last `to_keras`
    with CheckpointManager(ours, tmp_path / "ours") as manager:
        manager.restore_or_initialize()
    np.testing.assert_allclose(ours.predict(x, verbose=0), expected, atol=1e-6)
    theirs.fit(x, y, batch_size=16, verbose=0)  # the object is a whole one


def test_frozen_layers_stay_as_they_are_and_losses_of_layers_suffice(keras):
    theirs, (x, _) = named(keras, kernel_regularizer="l2"), images(keras)
    theirs.layers[-1].trainable = False
    ours = kd.Model.from_keras(theirs)
    ours.compile(kd.optimizers.SGD(0.1))
    before = ours.get_weights()
    history = ours.fit(x, np.zeros(32), batch_size=16, verbose=0).history
    assert history["loss"][0] == pytest.approx(float(np.sum(before[0] ** 2)) * 0.01, rel=0.05)
    changed = [not np.array_equal(old, new) for old, new in zip(before, ours.get_weights(), strict=True)]
    assert changed == [True, False, False, False]
    assert [row.role for row in ours.layout_plan.rows] == ["parameter"] * 4
    assert [weight.trainable for weight in ours.weights] == [True, True, False, False]


def test_errors_name_the_way_out(keras, monkeypatch):
    with pytest.raises(ModelError, match="not a model of Keras"):
        kd.Model.from_keras(kd.Sequential([kd.layers.Dense(2)]))
    with pytest.raises(ModelError, match="is not built"):
        kd.Model.from_keras(keras.Sequential([keras.layers.Dense(2)]))
    theirs = named(keras, "model")
    ours = kd.Model.from_keras(theirs)
    with pytest.raises(ModelError, match="the Keras model is not compiled"):
        ours.compile()
    theirs.compile("sgd", lambda y, p: p)
    with pytest.raises(ModelError, match="is not known here"):
        ours.compile()
    with pytest.raises(ModelError, match="was not made by from_keras"):
        kd.Sequential([kd.Input((4,)), kd.layers.Dense(2)]).to_keras()
    with monkeypatch.context() as patch:
        patch.setattr(keras.config, "backend", lambda: "torch")
        with pytest.raises(ModelError, match="Keras runs on torch"):
            kd.Model.from_keras(theirs)
    with keras.distribution.DataParallel(devices=kd.list_devices()).scope():
        under = named(keras)
    with pytest.raises(ModelError, match="a distribution of Keras is set"):
        kd.Model.from_keras(under)
