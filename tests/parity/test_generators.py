"""Generators of layers go on in prediction and evaluation, too, to the bits of Keras."""

import types
from typing import Any

import numpy as np
import pytest

import keras_dist as kd

X = np.zeros((6, 2), np.float32)


def drawn(model: Any) -> list[Any]:
    """What a model that adds noise gives in prediction, evaluation, calls, and batches of them."""
    model.compile(loss="mse")
    predicted = [model.predict(X, batch_size=4, verbose=0) for _ in range(2)]
    outputs = [*predicted, model.predict_on_batch(X), *(np.asarray(model(X)) for _ in range(2))]
    losses = [model.evaluate(X, X, batch_size=2, verbose=0) for _ in range(2)]
    return [*outputs, *losses, model.test_on_batch(X, X)]


@pytest.fixture(scope="module")
def expected(keras: types.ModuleType) -> list[Any]:
    """What Keras gives."""

    class Noise(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator(7)

        def call(self, inputs: Any) -> Any:
            return inputs + keras.random.normal(inputs.shape, seed=self.seed_generator)

    model = keras.Sequential([Noise()])
    model.build((None, 2))
    return drawn(model)


class Noise(kd.layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator = kd.random.SeedGenerator(7)

    def call(self, inputs: Any) -> Any:
        return inputs + kd.random.normal(inputs.shape, seed=self.seed_generator)


@pytest.mark.parametrize("devices", [1, 8])
def test_each_batch_has_numbers_of_its_own(expected, devices):
    with kd.DataParallel(devices=kd.distribution.list_devices()[:devices]).scope():
        model = kd.Sequential([Noise()])
        found = drawn(model)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
