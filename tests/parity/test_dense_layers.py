"""Dense against Keras."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from keras_dist import layers
from tests.parity.compare import compare_layers, few_examples


@few_examples
@hypothesis.given(
    shape=st.sampled_from([(1, 1), (3, 4), (2, 3, 4), (2, 1, 3, 2)]),
    units=st.sampled_from([1, 3]),
    use_bias=st.booleans(),
    activation=st.sampled_from([None, "relu", "softmax", "gelu"]),
    seed=st.integers(0, 2**16),
)
def test_dense(keras, shape, units, use_bias, activation, seed):
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    options = {"units": units, "use_bias": use_bias, "activation": activation}
    compare_layers(keras, keras.layers.Dense(**options), layers.Dense(**options), x, weights_seed=seed)
