"""What Keras's guides do with models, beside what other tests compare: networks of others as parts, and noise."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import keras_dist as kd

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def base(api):
    """What takes the place of a trained network."""
    inputs = api.Input((4,))
    x = api.layers.Dense(3, activation="tanh", name="first")(inputs)
    return api.Model(inputs, api.layers.BatchNormalization(name="norm")(x), name="base")


def tuned(api, values):
    """The weights of a network under a new head after each of two trainings: frozen, then free."""
    network = base(api)
    inputs = api.Input((4,))
    outputs = api.layers.Dense(1, name="head")(network(inputs, training=False))
    model = api.Model(inputs, outputs)
    model.set_weights(values)
    network.trainable = False
    found = []
    for rate in (0.1, 0.01):
        model.compile(api.optimizers.Adam(rate), "mse")
        trained = len(model.trainable_weights)
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
        found.append((trained, [np.asarray(value) for value in network.get_weights()], model.predict(X, verbose=0)))
        network.trainable = True
    return found


def test_a_network_is_frozen_and_then_tuned_as_in_keras(keras):
    draw = np.random.default_rng(1)
    shapes = [(4, 3), (3,), (3,), (3,), (3,), (3,), (3, 1), (1,)]
    values = [draw.uniform(0.5, 1, shape).astype("float32") for shape in shapes]
    ours, theirs = tuned(kd, values), tuned(keras, values)
    assert [trained for trained, *_ in ours] == [trained for trained, *_ in theirs] == [2, 6]
    np.testing.assert_allclose(ours[0][2], theirs[0][2], atol=1e-5)
    frozen, free = ours[0][1], ours[1][1]
    for mine, value in zip(frozen, values[:6], strict=True):
        np.testing.assert_array_equal(mine, value)
    assert not np.allclose(free[0], values[0])
    for statistic in (4, 5):  # as the guide says; Keras itself overrides `training=False` in `fit`
        np.testing.assert_array_equal(free[statistic], values[statistic])


def test_values_may_lie_where_the_user_has_put_them():
    """A loop of one's own around a model without a distribution, on all devices, some weights split."""
    model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(8), kd.layers.BatchNormalization(), kd.layers.Dense(1)])
    optimizer = kd.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    expected = model.predict(X, verbose=0)
    devices = np.array(jax.devices())
    replicated = NamedSharding(Mesh(devices, ("all",)), PartitionSpec())
    split = NamedSharding(Mesh(devices.reshape(2, 4), ("replica", "part")), PartitionSpec(None, "part"))
    state = [
        jax.device_put([variable.value for variable in variables], replicated)
        for variables in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    ]
    state[0][0] = jax.device_put(state[0][0], split)
    x = jax.device_put(X, NamedSharding(Mesh(devices, ("batch",)), PartitionSpec("batch")))

    def loss(trainable, rest, x, y):
        outputs, rest = model.stateless_call(trainable, rest, x, training=True)
        return ((outputs - y) ** 2).mean(), rest

    @jax.jit
    def step(state, x, y):
        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(*state[:2], x, y)
        trainable, slots = optimizer.stateless_apply(state[2], gradients, state[0])
        return value, [trainable, rest, slots]

    outputs = jax.jit(lambda state, x: model.stateless_call(*state[:2], x)[0])(state, x)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    first, state = step(state, x, Y)
    second, state = step(state, x, Y)
    assert second < first
    assert len(outputs.sharding.device_set) == len(devices)
