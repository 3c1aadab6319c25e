"""Whole trainings against Keras: the same weights, data and order give the same losses, metrics and weights."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from tests.compile_once import compile_once  # noqa: F401
from tests.layouts import on

ROWS, CLASSES = 22, 3


def dense(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="gelu", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dense(CLASSES, activation="softmax", bias_constraint="non_neg"),
        ]
    )


def convolutional(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.add([x, layers.SeparableConv2D(4, 3, padding="same")(x)])
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def recurrent(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Bidirectional(layers.GRU(4, return_sequences=True)),
            layers.LSTM(4),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def tagging(keras: Any) -> Any:
    """Masks reach the loss and the metrics."""
    layers = keras.layers
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    x = layers.LSTM(4, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def attentive(keras: Any) -> Any:
    """Without biases: that of the keys has no gradient, and Adam would make steps of its rounding errors."""
    layers = keras.layers
    inputs = keras.Input((5, 8))
    x = layers.MultiHeadAttention(2, 4, use_bias=False)(inputs, inputs, use_causal_mask=True)
    x = layers.RMSNormalization()(x + inputs)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


random = np.random.default_rng(0)
TOKENS = random.integers(0, 9, (ROWS, 5)).astype(np.int32)
LABELS = random.integers(0, CLASSES, ROWS).astype(np.int32)
CASES: dict[str, tuple[Callable[[Any], Any], Any, Any, Callable[[Any], Any]]] = {
    "dense": (dense, random.normal(size=(ROWS, 6)).astype(np.float32), LABELS, lambda o: o.SGD(0.1, momentum=0.9)),
    "convolutional": (
        convolutional,
        random.normal(size=(ROWS, 6, 6, 2)).astype(np.float32),
        LABELS,
        lambda o: o.RMSprop(0.01, clipnorm=0.5),
    ),
    "recurrent": (recurrent, TOKENS, LABELS, lambda o: o.Adagrad(o.schedules.ExponentialDecay(0.1, 2, 0.9))),
    "tagging": (tagging, TOKENS, random.integers(0, CLASSES, (ROWS, 5)).astype(np.int32), lambda o: o.SGD(0.2)),
    "attentive": (
        attentive,
        random.normal(size=(ROWS, 5, 8)).astype(np.float32),
        LABELS,
        lambda o: o.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.5),
    ),
}


@pytest.mark.parametrize("mesh", ["one device", "data=2,model=4"])
@pytest.mark.parametrize("case", CASES)
def test_training_gives_what_keras_gives(keras: types.ModuleType, case: str, mesh: str) -> None:
    make, x, y, optimizer = CASES[case]
    # of the shape of y: Keras multiplies masks by weights as they are
    weight = np.random.default_rng(1).uniform(0.5, 1.5, y.shape).astype(np.float32)
    theirs = make(keras)
    with on(mesh, {}).scope():
        ours = make(kd)
        ours.set_weights([np.asarray(w.value) for w in theirs.weights])
        histories, evaluations = [], []
        for library, model in ((kd, ours), (keras, theirs)):
            model.compile(
                optimizer(library.optimizers),
                loss="sparse_categorical_crossentropy",
                # Keras counts what is masked in metrics without weights
                metrics=[] if case == "tagging" else ["accuracy"],
                weighted_metrics=[library.metrics.SparseTopKCategoricalAccuracy(k=2, name="top2")],
            )
            options = {"batch_size": 8, "verbose": 0, "sample_weight": weight}
            history = model.fit(x, y, epochs=2, shuffle=False, validation_data=(x, y), **options).history
            histories.append({name: np.asarray(values) for name, values in history.items()})
            evaluations.append(model.evaluate(x, y, return_dict=True, **options))
        assert set(histories[0]) == set(histories[1]) and set(evaluations[0]) == set(evaluations[1])
        for name, values in histories[1].items():
            if (case, name) == ("tagging", "top2"):
                continue  # in training, not in evaluation, Keras loses the mask before it comes to the metrics
            assert np.allclose(histories[0][name], values, rtol=1e-4, atol=1e-5), name
        for name, value in evaluations[1].items():
            assert np.isclose(evaluations[0][name], value, rtol=1e-4, atol=1e-5), name
        for mine, other in zip(ours.weights, theirs.weights, strict=True):
            assert np.allclose(mine.numpy(), np.asarray(other.value), rtol=1e-4, atol=1e-5), mine.path
        assert np.allclose(ours.predict(x, verbose=0), theirs.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
