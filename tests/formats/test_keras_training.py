"""Training goes on with the same numbers in files that Keras wrote, and in Keras with files written here."""

import numpy as np
import pytest

import keras_dist as kd

OPTIMIZERS = {
    "SGD momentum": lambda k: k.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda k: k.optimizers.Adam(0.01),
    "Adam amsgrad": lambda k: k.optimizers.Adam(k.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), amsgrad=True),
    "Adamax": lambda k: k.optimizers.Adamax(0.01),
    "Nadam": lambda k: k.optimizers.Nadam(0.01),
    "RMSprop": lambda k: k.optimizers.RMSprop(0.01),
    "RMSprop centered": lambda k: k.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adagrad": lambda k: k.optimizers.Adagrad(0.1),
    "Adadelta": lambda k: k.optimizers.Adadelta(1.0),
    "Ftrl": lambda k: k.optimizers.Ftrl(0.1),
    "Lion": lambda k: k.optimizers.Lion(0.01),
    "Adafactor": lambda k: k.optimizers.Adafactor(0.1),
    "Muon": lambda k: k.optimizers.Muon(0.01),
    "LossScaleOptimizer": lambda k: k.optimizers.LossScaleOptimizer(k.optimizers.Adam(0.01), initial_scale=4.0),
    "accumulation": lambda k: k.optimizers.Adam(0.01, gradient_accumulation_steps=2),
}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 4)).astype("float32")
Y = RANDOM.normal(size=(8, 2)).astype("float32")


def dense(k):
    layers = k.layers
    return k.Sequential([k.Input((4,)), layers.Dense(3, "tanh"), layers.BatchNormalization(), layers.Dense(2)])


def fit(model, epochs=1):
    model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0)


def assert_same(ours, theirs):
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, 2e-4, 2e-5)


def test_averages_of_weights_are_read(keras, tmp_path):
    """Keras itself cannot go on: it gives averages and weights the same buffers, and donates both."""
    theirs = dense(keras)
    theirs.compile(keras.optimizers.SGD(0.1, momentum=0.5, use_ema=True, ema_momentum=0.8), loss="mse")
    fit(theirs)
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras")
    by_path = {variable.path: variable.numpy() for variable in ours.optimizer.variables}
    for variable in theirs.optimizer.variables[2:]:
        if "dense" in variable.path and "batch" not in variable.path:
            assert any(
                value.shape == variable.shape and np.array_equal(value, variable.value) for value in by_path.values()
            ), variable.path


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on(keras, tmp_path, name):
    theirs = dense(keras)
    theirs.compile(OPTIMIZERS[name](keras), loss="mse", metrics=["mae"])
    fit(theirs)
    theirs.save(tmp_path / "theirs.keras")
    ours = kd.models.load_model(tmp_path / "theirs.keras")
    assert type(ours.optimizer).__name__ == type(theirs.optimizer).__name__
    fit(theirs)
    fit(ours)
    assert_same(ours, theirs)

    ours.save(tmp_path / "ours.keras")
    again = keras.models.load_model(tmp_path / "ours.keras")
    assert int(again.optimizer.iterations) == int(theirs.optimizer.iterations)
    fit(theirs)
    fit(again)
    assert_same(again, theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: kd.optimizers.Muon(0.01, coefficients="polar_express"),
        lambda: kd.optimizers.LossScaleOptimizer(kd.optimizers.Muon(0.01, neuron_beta=0.9)),
        lambda: kd.optimizers.AdamW8bit(0.01),
        lambda: kd.optimizers.RowWiseAdagrad(0.01),
    ],
    ids=["Polar Express", "wrapped NorMuon", "AdamW8bit", "RowWiseAdagrad"],
)
def test_keras_reads_the_weights_beside_optimizers_that_it_does_not_have(keras, tmp_path, make):
    ours = dense(kd)
    ours.compile(make(), loss="mse")
    fit(ours)
    ours.save(tmp_path / "ours.keras")
    theirs = keras.models.load_model(tmp_path / "ours.keras")
    assert not theirs.compiled
    assert_same(ours, theirs)
    again = kd.models.load_model(tmp_path / "ours.keras")
    assert again.optimizer.get_config() == ours.optimizer.get_config()
    for model in (ours, again):
        fit(model)
    assert_same(again, ours)
