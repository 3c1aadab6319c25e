"""`ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D` against Keras."""

import numpy as np
import pytest

from keras_dist import layers
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
