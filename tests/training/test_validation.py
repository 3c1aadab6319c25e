"""Validation with a generator that ends too early."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers

X, Y = np.ones((8, 2), np.float32), np.zeros((8, 1), np.float32)


def test_training_goes_on_when_a_validation_generator_is_over():
    model = kd.Sequential([layers.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = ((X, Y) for _ in range(3))
    with pytest.warns(UserWarning, match="ran out of data") as caught:
        history = model.fit(X, Y, validation_data=batches, validation_steps=2, epochs=4, verbose=0).history
    assert (len(history["loss"]), len(history["val_loss"])) == (4, 2)  # of two batches, and of one
    assert [f"ends after {left}" in str(one.message) for left, one in zip((1, 0, 0), caught, strict=True)] == [True] * 3
