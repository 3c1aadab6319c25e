"""Layers whose constructor makes their weights live in several models, as those with a `build` do."""

import numpy as np
import pytest

import keras_dist as kd

X = np.ones((2, 4), "float32")


class Scale(kd.Layer):
    """`inputs * scale + shifts`, with weights that no `build` makes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = self.add_weight((1,), "ones")
        self.shifts = [self.add_weight((4,), "ones", name=f"shift{i}") for i in range(2)]

    def call(self, inputs):
        return inputs * self.scale + self.shifts[0] + self.shifts[1]


def test_a_sequential_without_input_holds_them():
    model = kd.Sequential([Scale()])
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((2, 4)), verbose=0)
    assert [weight.path for weight in model.weights] == ["scale/scale", "scale/shifts/0", "scale/shifts/1"]
    assert model.layers[0].scale.numpy() != 1
    assert model.output_shape == (None, 4)


@pytest.mark.parametrize("is_called_first", [False, True])
def test_two_models_share_them(is_called_first):
    layer = Scale()
    if is_called_first:
        layer(X)
    inputs = kd.Input((4,))
    first = kd.Model(inputs, layer(inputs))
    first.set_weights([[3.0], np.zeros(4), np.ones(4)])
    others = kd.Input((4,))
    second = kd.Model(others, layer(others) * 2)
    np.testing.assert_allclose(second(X), np.full((2, 4), 8))
    second.set_weights([[5.0], np.zeros(4), np.zeros(4)])
    np.testing.assert_allclose(first(X), np.full((2, 4), 5))
    assert [weight.path for weight in second.weights] == [weight.path for weight in first.weights]
