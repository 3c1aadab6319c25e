"""Recurrent layers that keep their states, against Keras's called layer by layer, and on meshes."""

import contextlib

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

X = np.random.default_rng(0).normal(size=(8, 5, 3)).astype("float32")
MAKERS = {
    "SimpleRNN": lambda k: k.SimpleRNN(4, stateful=True),
    "GRU": lambda k: k.GRU(4, stateful=True, return_sequences=True),
    "LSTM": lambda k: k.LSTM(4, stateful=True, return_state=True),
    "stacked": lambda k: k.RNN([k.LSTMCell(4), k.GRUCell(4)], stateful=True),
    "Bidirectional": lambda k: k.Bidirectional(k.GRU(4, stateful=True)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_states_are_those_of_keras(keras, name):
    ours, theirs = MAKERS[name](layers), MAKERS[name](keras.layers)
    for layer in (ours, theirs):
        layer.build((8, 5, 3))
    own = [weight for weight in ours.weights if weight.name != "rnn_state"]
    for weight, other in zip(own, theirs.weights, strict=True):
        weight.assign(np.asarray(other))
    for call in range(4):
        if call == 2:
            ours.reset_state()
            _reset(theirs)  # in Keras `Bidirectional` and stacked cells raise
        found, expected = (np.concatenate([np.ravel(part) for part in _parts(layer(X))]) for layer in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not any(weight.trainable for weight in ours.weights if weight.name == "rnn_state")


def _reset(layer):
    for one in [layer] if hasattr(layer, "cell") else [layer.forward_layer, layer.backward_layer]:
        for state in jax.tree.leaves(one.states):
            state.assign(np.zeros(state.shape))


def _parts(outputs):
    return outputs if isinstance(outputs, list | tuple) else [outputs]


def made(distribution=None):
    with contextlib.nullcontext() if distribution is None else distribution.scope():
        kd.set_random_seed(0)
        model = kd.Sequential([kd.Input(batch_shape=(8, 5, 3)), layers.LSTM(4, stateful=True), layers.Dense(1)])
        model.compile(kd.optimizers.SGD(0.1), "mse")
    return model


def test_evaluation_and_prediction_go_on_where_the_batch_before_ended():
    model = made()
    layer = model.layers[0]
    first, second = (model.predict(X, batch_size=8, verbose=0) for _ in range(2))
    whole = kd.Sequential([kd.Input((10, 3)), layers.LSTM(4), layers.Dense(1)])
    whole.set_weights([weight.numpy() for weight in model.weights if weight.name != "rnn_state"])
    np.testing.assert_allclose(second, whole.predict(np.concatenate([X, X], 1), verbose=0), rtol=1e-5, atol=1e-6)
    layer.reset_states()
    np.testing.assert_allclose(model(X), first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(X), second, rtol=1e-5, atol=1e-6)
    layer.reset_state()
    zeros = np.zeros((8, 1), "float32")
    losses = [model.evaluate(X, zeros, batch_size=8, verbose=0) for _ in range(2)]
    np.testing.assert_allclose(losses, [np.mean(first**2), np.mean(second**2)], rtol=1e-5)


def test_on_meshes_states_lie_as_the_batch_does():
    found = []
    for distribution in (None, kd.FullySharded(kd.DeviceMesh({"data": 4}, devices=kd.list_devices()[:4]))):
        model = made(distribution)
        history = model.fit(np.concatenate([X, X[::-1]]), np.ones((16, 1)), batch_size=8, shuffle=False, verbose=0)
        model.predict(X, batch_size=8, verbose=0)
        state = model.layers[0].states[0]
        if distribution is not None:
            assert tuple(state.layout.axes) == ("data", None)
            assert {shard.data.shape for shard in state.value.addressable_shards} == {(2, 4)}
            assert model.layout_plan.row(state.path).role == "state"
        found.append([history.history["loss"][0], *np.ravel(state.numpy())])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_batches_of_another_size(keras):
    layer = layers.LSTM(4, stateful=True)
    assert layer.states is None
    layer(X)
    with pytest.raises(ModelError, match="batches of 8 rows"):
        layer(X[:3])
    with pytest.raises(ModelError, match=r"Input\(batch_shape=\(32, 5, 3\)\)"):
        layers.GRU(4, stateful=True)(kd.Input((5, 3)))
    again = type(layer).from_config(layer.get_config())
    assert again.stateful and layers.Bidirectional(again).stateful
