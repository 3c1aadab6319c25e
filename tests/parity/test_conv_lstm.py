"""`ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D` against Keras."""

import json

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests.parity.compare import assert_close, compare_layers

CASES = [
    (1, (2, 3, 6, 2), {"return_sequences": True, "go_backwards": True}),
    (2, (2, 3, 6, 5, 2), {"strides": 2, "padding": "same", "return_state": True, "use_bias": False}),
    (2, (2, 3, 2, 6, 5), {"data_format": "channels_first", "dilation_rate": 2, "activation": "relu"}),
    (3, (2, 2, 4, 4, 4, 2), {}),
]


def draw(shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize(("rank", "shape", "options"), CASES, ids=str)
def test_numbers(keras, rank, shape, options):
    theirs, ours = (getattr(k, f"ConvLSTM{rank}D")(3, 2, **options) for k in (keras.layers, layers))
    compare_layers(keras, theirs, ours, draw(shape), weights_from=-0.5, gradients=rank == 1)
    assert [weight.path.split("/")[-2:] for weight in ours.weights] == [
        weight.path.split("/")[-2:] for weight in theirs.weights
    ]


def test_one_seed_drops_the_same(keras):
    options = {"dropout": 0.3, "recurrent_dropout": 0.4, "seed": 7}
    theirs, ours = (k.ConvLSTM1D(3, 2, **options) for k in (keras.layers, layers))
    compare_layers(keras, theirs, ours, draw((2, 3, 6, 2)), training=True, gradients=False)


def test_first_values(keras):
    options = {"kernel_initializer": "ones", "recurrent_initializer": "zeros"}
    theirs, ours = (k.ConvLSTM2D(3, 2, **options) for k in (keras.layers, layers))
    for layer in (theirs, ours):
        layer.build((None, 3, 6, 5, 2))
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        assert_close(np.asarray(mine), np.asarray(other))
    assert (ours.filters, ours.kernel_size, ours.padding) == (3, (2, 2), "valid")
    assert ours.get_initial_state(4)[1].shape == theirs.get_initial_state(4)[1].shape == (4, 5, 4, 3)


def test_shapes_and_configs(keras):
    theirs = keras.layers.ConvLSTM2D(3, (2, 3), data_format="channels_first", return_sequences=True)
    ours = layers.ConvLSTM2D.from_config(json.loads(json.dumps(theirs.get_config())))
    assert ours(kd.Input((4, 2, 6, 6))).shape == theirs.compute_output_shape((None, 4, 2, 6, 6)) == (None, 4, 3, 5, 4)
    assert keras.layers.ConvLSTM2D.from_config({**theirs.get_config(), "filters": 4}).filters == 4
    again = layers.ConvLSTM2D.from_config(ours.get_config())
    assert again.data_format == "channels_first" and again.return_sequences
    assert layers.ConvLSTM1D(3, 2)(kd.Input((None, None, 2))).shape == (None, None, 3)


def test_stateful(keras):
    theirs, ours = (k.ConvLSTM1D(3, 2, stateful=True) for k in (keras.layers, layers))
    x = draw((2, 3, 6, 2))
    for layer in (theirs, ours):
        layer.build(x.shape)
    for mine, other in zip([w for w in ours.weights if w.name != "rnn_state"], theirs.weights, strict=True):
        mine.assign(np.asarray(other))
    for _ in range(2):
        assert_close(np.asarray(ours(x)), np.asarray(theirs(x)))


def test_on_a_mesh():
    x, y = draw((8, 2, 4, 4, 1)), np.zeros((8, 3, 3, 2), "float32")
    found = []
    for devices in (1, 4):
        with kd.DataParallel(devices=kd.list_devices()[:devices]).scope():
            kd.set_random_seed(0)
            model = kd.Sequential([kd.Input((2, 4, 4, 1)), layers.ConvLSTM2D(2, 2)])
        model.compile("sgd", "mse")
        found.append(model.fit(x, y, epochs=2, verbose=0).history["loss"])
    assert_close(*map(np.array, found))


def test_what_cannot_be():
    with pytest.raises(ModelError, match="dilation_rate"):
        layers.ConvLSTM2D(3, 2, strides=2, dilation_rate=2)
    with pytest.raises(ModelError, match="nothing is left"):
        layers.ConvLSTM1D(3, 4)(draw((2, 3, 3, 1)))
