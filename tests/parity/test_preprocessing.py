"""`utils.to_categorical`, `normalize`, `pad_sequences` against those of Keras."""

import numpy as np
import pytest

from keras_dist import utils


@pytest.mark.parametrize("x", [[0, 2, 1], [[0], [3]], [[0, 1], [2, 0]], 2, np.array([1.0, 0.0])])
@pytest.mark.parametrize("num_classes", [None, 5])
def test_to_categorical(keras, x, num_classes):
    ours, theirs = utils.to_categorical(x, num_classes), keras.utils.to_categorical(x, num_classes)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("order", [1, 2, np.inf])
@pytest.mark.parametrize(("shape", "axis"), [((3, 4), -1), ((3, 4), 1), ((2, 3, 4), 2)])
def test_normalize(keras, shape, axis, order):
    x = np.random.default_rng(0).normal(size=shape)
    x[0] = 0.0
    np.testing.assert_allclose(utils.normalize(x, axis, order), keras.utils.normalize(x, axis, order), rtol=1e-6)


@pytest.mark.parametrize("side", ["pre", "post"])
@pytest.mark.parametrize("cut", ["pre", "post"])
@pytest.mark.parametrize("maxlen", [None, 2, 6])
@pytest.mark.parametrize(
    ("sequences", "options"),
    [
        ([[1, 2, 3], [4], [], [5, 6, 7, 8]], {}),
        ([[[1, 2], [3, 4], [5, 6]], [[7, 8]]], {"value": -1.0, "dtype": "float32"}),
        ([["a", "b", "c"], ["d"]], {"value": "<pad>", "dtype": object}),
    ],
)
def test_pad_sequences(keras, sequences, options, maxlen, cut, side):
    options = {**options, "maxlen": maxlen, "truncating": cut, "padding": side}
    ours, theirs = utils.pad_sequences(sequences, **options), keras.utils.pad_sequences(sequences, **options)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
