"""Dropout and ActivityRegularization; `tests/parity` compares dropped values and noise with Keras's."""

import numpy as np
import pytest

from keras_dist import layers, models


def test_activities_are_added_to_the_loss_of_a_model() -> None:
    model = models.Sequential([layers.Input((2,)), layers.ActivityRegularization(l1=0.5, l2=0.25)])
    model.compile(loss="mse")
    x = np.array([[1.0, -2.0], [2.0, 1.0]])
    assert model.evaluate(x, x, verbose=0) == pytest.approx((0.5 * 6 + 0.25 * 10) / 2)


def test_build_alone_draws_the_state_of_the_generator() -> None:
    layer = layers.Dropout(0.5, seed=0)
    layer.build((2, 3))
    assert layer.built
