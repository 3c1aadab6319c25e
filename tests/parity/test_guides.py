"""What Keras's guides do with models, beside what other tests compare: networks of others as parts, and noise."""

import numpy as np

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
