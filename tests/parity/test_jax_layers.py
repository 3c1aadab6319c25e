"""`JaxLayer` and `FlaxLayer` against Keras."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ConfigError, ModelError
from tests.parity.compare import assert_close

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
PARAMS = {"dense": [np.ones((4, 3), "float32"), np.zeros(3, "float32")]}


def call(params, state, rng, inputs, training):
    kernel, bias = params["dense"]
    outputs = inputs @ kernel + bias + state["count"]
    if training:
        outputs = outputs + jax.random.normal(rng, outputs.shape)
    return outputs, {"count": state["count"] + 1}


def first(rng, inputs):
    return {"dense": [jax.random.normal(rng, (inputs.shape[-1], 3)), jnp.zeros(3)]}, {"count": jnp.zeros(())}


def test_given_values_states_and_keys(keras):
    ours, theirs = (k.JaxLayer(call, params=PARAMS, state={"count": 2.0}, seed=3) for k in (layers, keras.layers))
    for training in (False, True, False):
        assert_close(np.asarray(ours(X, training=training)), np.asarray(theirs(X, training=training)))
    ours_shapes, theirs_shapes = ([(w.shape, w.trainable) for w in layer.weights] for layer in (ours, theirs))
    assert ours_shapes == theirs_shapes
    assert [w.path for w in ours.weights] == ["params/dense/0", "params/dense/1", "state/count"]
    assert float(ours.state["count"].value) == 5.0


class Block(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, inputs, training=False):
        x = flax.linen.Dense(3)(inputs)
        x = flax.linen.BatchNorm(use_running_average=not training)(x)
        return flax.linen.Dropout(0.5, deterministic=not training)(x)


def test_linen(keras):
    variables = Block().init(jax.random.key(0), X)
    ours, theirs = (k.FlaxLayer(Block(), variables=variables, seed=1) for k in (layers, keras.layers))
    for training in (False, True, False):
        assert_close(np.asarray(ours(X, training=training)), np.asarray(theirs(X, training=training)))
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    assert ours.weights[0].path == "params/params/BatchNorm_0/bias"
    made = layers.FlaxLayer(Block(), method=lambda module, inputs: module(inputs * 2))
    model = kd.Sequential([kd.Input((4,)), made])
    assert model.predict(X, verbose=0).shape == (8, 3) and made.count_params() == theirs.count_params()


def test_configs_and_mistakes():
    known = kd.saving.register_keras_serializable("tests")
    layer = layers.JaxLayer(known(call), known(first), name="a")
    again = layers.JaxLayer.from_config(layer.get_config())
    assert again.name == "a" and again(X).shape == (8, 3)
    with pytest.raises(ConfigError):
        layers.FlaxLayer(Block()).get_config()
    with pytest.raises(ModelError, match="call_fn"):
        layers.JaxLayer(lambda x: x)
    with pytest.raises(ModelError, match="no first parameters"):
        layers.JaxLayer(call)
    with pytest.raises(ModelError, match="another structure"):
        layers.JaxLayer(lambda state, inputs: (inputs, {}), state={"count": 0.0})(X)
    with pytest.raises(ModelError, match="must be a module of Linen"):
        layers.FlaxLayer(layers.Dense(2))


def test_parameters_in_lists_are_read_as_lists_and_begin_another_layer():
    def dense_layers(params, inputs):
        for kernel, bias in params[:-1]:
            inputs = jnp.tanh(inputs @ kernel + bias)
        return inputs @ params[-1]

    def first_lists(rng, inputs):
        keys = jax.random.split(rng)
        return [(jax.random.normal(keys[0], (4, 3)), jnp.ones(3)), jax.random.normal(keys[1], (3, 2))]

    model = kd.Sequential([layers.JaxLayer(dense_layers, first_lists, name="mlp")])
    outputs = model(X)
    (layer,) = model.layers
    assert [weight.path for weight in layer.weights] == ["mlp/params/0/0", "mlp/params/0/1", "mlp/params/1"]
    np.testing.assert_array_equal(layer.params[0][1].numpy(), np.ones(3))
    for params in (layer.params, jax.tree.map(np.asarray, layer.params)):
        again = layers.JaxLayer(dense_layers, params=params)
        np.testing.assert_allclose(again(X), outputs, rtol=1e-6, atol=1.2e-7)  # an ulp of 1, for sums of terms of 1
        assert [weight.path for weight in again.weights] == ["params/0/0", "params/0/1", "params/1"]
