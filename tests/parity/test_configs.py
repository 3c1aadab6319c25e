"""Configs that Keras wrote."""

import numpy as np
import pytest

import keras_dist as kd


def test_models_of_keras_are_read(keras):
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2", name="c")(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.add([x, keras.layers.DepthwiseConv2D(3, padding="same")(x)])
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    x = keras.layers.Dropout(0.3)(keras.layers.Dense(5, "gelu")(x))
    functional = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(x))
    sequential = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Embedding(9, 4, mask_zero=True),
            keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True)),
            keras.layers.GRU(4),
            keras.layers.Dense(2),
        ]
    )
    random = np.random.default_rng(0)
    for theirs, x in ((functional, random.normal(size=(4, 8, 8, 3))), (sequential, random.integers(0, 9, (4, 5)))):
        ours = kd.models.model_from_json(theirs.to_json())
        assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
        ours.set_weights([np.asarray(w.value) for w in theirs.weights])
        x = x.astype(np.float32)
        assert np.allclose(ours.predict(x, verbose=0), theirs.predict(x, verbose=0), atol=1e-5)


def test_losses_metrics_and_optimizers_of_keras_are_read(keras):
    for make in (
        lambda k: k.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
        lambda k: k.metrics.AUC(num_thresholds=20, curve="PR"),
        lambda k: k.optimizers.Adam(k.optimizers.schedules.CosineDecay(0.1, 10), clipnorm=1.0),
        lambda k: k.initializers.VarianceScaling(2.0, "fan_out"),
        lambda k: k.regularizers.L1L2(0.1, 0.2),
    ):
        theirs, ours = make(keras), make(kd)
        read = kd.saving.deserialize_keras_object(keras.saving.serialize_keras_object(theirs))
        assert type(read) is type(ours)
        ours_config, read_config = ours.get_config(), read.get_config()
        for name in set(ours_config) - {"dtype", "name"}:
            assert read_config[name] == ours_config[name], name


def test_branched_models_list_layers_and_weights_as_keras_does(keras):
    def make(k):
        layers = k.layers
        a, b = k.Input((4,), name="left"), k.Input((4,), name="right")
        short = layers.Dense(4, name="short")(a)
        x = layers.Dense(4, name="x1")(a)
        x = layers.Dense(4, name="x2")(x)
        x = layers.add([x, short], name="sum") if k is keras else layers.Add(name="sum")([x, short])
        z = layers.Dense(4, name="z")(b)
        shared = layers.Dense(4, name="shared")
        return k.Model([b, a], {"q": layers.Dense(2, name="head")(shared(x)), "p": shared(z)})

    theirs, ours = make(keras), make(kd)
    assert [layer.name for layer in ours.layers if layer.weights] == [
        layer.name for layer in theirs.layers if layer.weights
    ]
    assert [w.shape for w in ours.weights] == [tuple(w.shape) for w in theirs.weights]


def test_compile_configs_of_keras_are_read(keras):
    theirs = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    theirs.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    ours = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
    ours.compile_from_config(theirs.get_compile_config())
    assert np.float32(ours.optimizer.learning_rate) == np.float32(0.01)
    ours.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Dense", {"units": 3, "activation": "relu"}),
        ("GaussianNoise", {"stddev": 0.5}),
        ("LSTM", {"units": 4}),
        ("Dropout", {"rate": 0.25}),
    ],
)
def test_layers_are_read(keras, name, arguments):
    layer = kd.layers.deserialize(keras.layers.serialize(getattr(keras.layers, name)(name="it", **arguments)))
    assert type(layer) is getattr(kd.layers, name)
    assert layer.name == "it"
    assert {argument: layer.get_config()[argument] for argument in arguments} == arguments
