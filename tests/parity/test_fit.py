"""Whole trainings against Keras: the same weights, data and order give the same losses, metrics and weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from tests.layouts import on
from tests.soak import LARGE, ROUNDS, crossed, some

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


def tagging(keras: Any) -> Any:
    """Masks reach the loss and the metrics."""
    layers = keras.layers
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True))(x)
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
    "tagging": (
        tagging,
        TOKENS,
        random.integers(0, CLASSES, (ROWS, 5)).astype(np.int32),
        lambda o: o.Adagrad(o.schedules.ExponentialDecay(0.1, 2, 0.9)),
    ),
    "attentive": (
        attentive,
        random.normal(size=(ROWS, 5, 8)).astype(np.float32),
        LABELS,
        lambda o: o.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.5),
    ),
}


TRAINED = CASES if ROUNDS else [case for case in CASES if case != "attentive"]


@pytest.mark.soak
@pytest.mark.parametrize(("case", "mesh"), some(crossed(TRAINED, ["data=2,model=4", *["one device"] * LARGE])))
def test_training_gives_what_keras_gives(keras, case, mesh):
    make, x, y, optimizer = CASES[case]
    if case != "dense" and not LARGE:  # the others without a shorter last batch: half the programs
        x, y = x[:16], y[:16]
    # of the shape of y: Keras multiplies masks by weights as they are
    weight = np.random.default_rng(1).uniform(0.5, 1.5, y.shape).astype(np.float32)
    keras.utils.set_random_seed(0)  # for some weights a sum near 0, rounded another way, switches a ReLU or a maximum
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


def branched(keras: Any, as_dict: bool) -> Any:
    layers = keras.layers
    inputs = keras.Input((6,))
    x = layers.Dense(5, activation="tanh")(inputs)
    sort, size = layers.Dense(CLASSES, activation="softmax", name="sort")(x), layers.Dense(2, name="size")(x)
    return keras.Model(inputs, {"sort": sort, "size": size} if as_dict else [sort, size])


@pytest.mark.parametrize("as_dict", [False, True], ids=["list", "dict"])
def test_training_of_several_outputs_gives_what_keras_gives(keras, as_dict):
    rng = np.random.default_rng(2)
    x, size = (rng.normal(size=(ROWS, width)).astype(np.float32) for width in (6, 2))
    losses, metrics = ["sparse_categorical_crossentropy", "mse"], [["accuracy"], ["mae"]]
    parts: list[Any] = [losses, [0.5, 2.0], metrics, [LABELS, size]]
    if as_dict:
        parts = [dict(zip(("sort", "size"), part, strict=True)) for part in parts]
    loss, weights, metrics, y = parts
    steps = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2}
    theirs = branched(keras, as_dict)
    with on("data=2,model=4", {}).scope():
        ours = branched(kd, as_dict)
        ours.set_weights(theirs.get_weights())
        histories = []
        for library, model in ((kd, ours), (keras, theirs)):
            optimizer = library.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.3, **steps)
            model.compile(optimizer, loss, weights, metrics)
            # even batches: where Keras takes the mean of what is accumulated, here each row counts the same
            histories.append(model.fit(x, y, batch_size=ROWS // 2, epochs=4, shuffle=False, verbose=0).history)
        assert set(histories[0]) == set(histories[1]) and len(histories[0]) == 5
        for name, values in histories[1].items():
            assert np.allclose(histories[0][name], values, rtol=1e-4, atol=1e-5), name
        for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            assert np.allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*Your input ran out of data")
def test_epochs_splits_and_weights_are_those_of_keras(keras):
    x = np.random.default_rng(3).normal(size=(ROWS, 6)).astype(np.float32)
    options: dict[str, Any] = {
        "batch_size": 4,
        "validation_split": 0.2,
        "class_weight": {0: 0.3, 2: 2.5},
        "steps_per_epoch": 3,
        "validation_steps": 1,
        "validation_batch_size": 3,
        "validation_freq": [2, 3],
    }
    theirs = dense(keras)
    with on("data=2,model=4", {}).scope():
        ours = dense(kd)
        ours.set_weights(theirs.get_weights())
        histories = []
        for model in (ours, theirs):
            model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
            model.fit(x, LABELS, epochs=4, shuffle=False, verbose=0, **options)
            histories.append(model.history)
        assert [history.params for history in histories] == [{"verbose": 0, "epochs": 4, "steps": 3}] * 2
        assert histories[0].epoch == histories[1].epoch
        assert set(histories[0].history) == set(histories[1].history)
        for name, values in histories[1].history.items():
            assert np.allclose(histories[0].history[name], values, rtol=1e-4, atol=1e-5), name
        for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            assert np.allclose(mine, other, rtol=1e-4, atol=1e-5)
