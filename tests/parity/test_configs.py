"""Configs that Keras wrote."""

import types

import numpy as np

import keras_dist as kd
from tests.compile_once import compile_once  # noqa: F401


def test_models_of_keras_are_read(keras: types.ModuleType) -> None:
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


def test_losses_metrics_and_optimizers_of_keras_are_read(keras: types.ModuleType) -> None:
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
