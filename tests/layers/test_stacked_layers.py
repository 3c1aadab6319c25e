"""A stack of equal layers in a loop computes what these layers compute one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.layers.stacked_layers import scan_layers, stacked_weights

COUNT, SIZE = 3, 4
X = np.random.default_rng(0).normal(size=(8, SIZE)).astype("float32")


class Stack(kd.Model):
    """`COUNT` layers, each called on the output of the one before plus its number."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.stack = layer

    def call(self, inputs, training=None):
        if not self.stack.built:
            with stacked_weights(COUNT):
                self.stack.build(inputs.shape)
        return scan_layers(self.stack, lambda one, x, number, rows: one(x) + number, inputs, jnp.arange(float(COUNT)))


def test_each_layer_has_its_own_weights():
    model = Stack(layers.Dense(SIZE, "tanh", bias_initializer="uniform", kernel_layout=(None, None)))
    found = model(X)
    kernel, bias = (weight.numpy() for weight in model.weights)
    assert [weight.path for weight in model.weights] == ["stack/kernel", "stack/bias"]
    assert (kernel.shape, bias.shape) == ((COUNT, SIZE, SIZE), (COUNT, SIZE))
    assert len({one.tobytes() for one in kernel}) == len({one.tobytes() for one in bias}) == COUNT
    limit = np.sqrt(6 / (SIZE + SIZE))  # of one layer, not of the stack
    assert limit / 2 < abs(kernel).max() <= limit
    expected = X
    for number in range(COUNT):
        expected = np.tanh(expected @ kernel[number] + bias[number]) + number
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gradients_are_those_of_a_hand_written_loop():
    model = Stack(layers.Dense(SIZE, "tanh", use_bias=False))
    model.build(X.shape)
    [kernel] = model.get_weights()

    def loss(kernel):
        x = X
        for number in range(COUNT):
            x = jnp.tanh(x @ kernel[number]) + number
        return jnp.mean(x**2)

    model.compile("sgd", "mse")
    value = model.train_on_batch(X, np.zeros_like(X))
    np.testing.assert_allclose(value, loss(kernel), rtol=1e-6)
    np.testing.assert_allclose(model.get_weights()[0], kernel - 0.01 * jax.grad(loss)(kernel), atol=1e-6)


def test_losses_of_all_layers_count():
    model = Stack(layers.Dense(SIZE, use_bias=False, activity_regularizer=lambda y: jnp.sum(y**2)))
    model.build(X.shape)
    [kernel] = model.get_weights()
    x, expected = X, 0.0
    for number in range(COUNT):
        expected += np.sum((x @ kernel[number]) ** 2) / len(X)
        x = x @ kernel[number] + number
    model.compile("sgd", "mse")
    np.testing.assert_allclose(model.test_on_batch(X, x), expected, rtol=1e-4)


def test_each_layer_drops_other_values():
    dropout = layers.Dropout(0.5, seed=3)
    _ = dropout.seed_generator.state  # which a layer that is built has
    model, ones = Stack(dropout), np.ones((64, SIZE), "float32")
    np.testing.assert_array_equal(model(ones), ones + 3)
    first, second = (np.asarray(model(ones, training=True)) for _ in range(2))
    # 0 or double, plus 0, 1 and 2 in turn; with the same mask in all layers it would be 2 or 12
    assert set(np.unique(first)) == {2, 4, 12}
    assert not np.array_equal(first, second), "the stream continues after the loop"


@pytest.mark.parametrize("rules", [{"stack/kernel": (None, None, "model")}, {"stack/kernel": (None, "model", None)}])
def test_a_stack_is_sharded_by_rules_with_its_leading_dim(rules):
    mesh = kd.DeviceMesh("data=2,model=4")
    layout_map = kd.LayoutMap(mesh)
    layout_map.update(rules)
    with kd.ModelParallel(layout_map).scope():
        model = Stack(layers.Dense(SIZE, "tanh"))
        found = model(X)
    assert model.layout_plan.row("stack/kernel").axes == rules["stack/kernel"]
    kernel, bias = model.get_weights()
    expected = X
    for number in range(COUNT):
        expected = np.tanh(expected @ kernel[number] + bias[number]) + number
    np.testing.assert_allclose(found, expected, atol=1e-5)
