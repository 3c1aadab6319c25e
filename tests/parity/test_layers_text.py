"""Layers of text and bins against Keras, which needs TensorFlow for most of them: tests/layers has known values."""

import numpy as np

from keras_dist import layers


def test_limits_are_learned_as_in_keras(keras):
    random = np.random.default_rng(0)
    theirs, ours = keras.layers.Discretization(num_bins=5), layers.Discretization(num_bins=5)
    batches = [random.normal(size=size) for size in (1000, 30, 411)]
    for batch in batches:
        theirs.update_state(batch)
    theirs.finalize_state()
    ours.adapt(batches)
    np.testing.assert_allclose(ours.bin_boundaries, theirs.bin_boundaries, rtol=1e-6)
    again = layers.Discretization.from_config(ours.get_config())
    assert again.bin_boundaries == ours.bin_boundaries and again.num_bins == 5


def test_bins_are_those_of_keras(keras):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    for mode in ("int", "one_hot", "multi_hot", "count"):
        for inputs in (x, x[:, :1], x[:, 0]):
            theirs, ours = (made.Discretization([-0.5, 0.2, 1.0], output_mode=mode) for made in (keras.layers, layers))
            np.testing.assert_array_equal(ours(inputs), theirs(inputs))
            assert ours(inputs).dtype == theirs(inputs).dtype
