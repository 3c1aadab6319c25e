"""Layers that draw in training against Keras: one seed gives the same."""

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np

from keras_dist import layers
from keras_dist.variables import call_context
from tests.parity.compare import compare_layers

SHAPES = {1: (2, 3, 4), 2: (2, 3, 2, 4), 3: (2, 3, 2, 2, 4)}


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 2, size=shape).astype("float32")


@hypothesis.given(
    kind=st.sampled_from(["Dropout", "AlphaDropout"]),
    rate=st.sampled_from([0, 0.3, 1.0]),
    noise_shape=st.sampled_from([None, (2, 1, 4), [None, 1, None], (1, 4)]),
    training=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_dropping(keras, kind, rate, noise_shape, training, seed):
    rate = min(rate, 0.9) if kind == "AlphaDropout" else rate
    options = {"rate": rate, "noise_shape": noise_shape, "seed": seed}
    theirs, ours = getattr(keras.layers, kind)(**options), getattr(layers, kind)(**options)
    compare_layers(keras, theirs, ours, draw((2, 3, 4), seed), training=training)


@hypothesis.given(
    rank=st.integers(1, 3), data_format=st.sampled_from([None, "channels_first"]), seed=st.integers(0, 2**16)
)
def test_dropping_channels(keras, rank, data_format, seed):
    options = {"rate": 0.5, "seed": seed} | ({} if rank == 1 else {"data_format": data_format})
    name = f"SpatialDropout{rank}D"
    theirs, ours = getattr(keras.layers, name)(**options), getattr(layers, name)(**options)
    compare_layers(keras, theirs, ours, draw(SHAPES[rank], seed), training=True)


@hypothesis.given(amount=st.sampled_from([0, 0.2, 0.9]), training=st.booleans(), seed=st.integers(0, 2**16))
def test_gaussian_noise(keras, amount, training, seed):
    x = draw((2, 3), seed)
    for name in ("GaussianNoise", "GaussianDropout"):
        theirs, ours = getattr(keras.layers, name)(amount, seed=seed), getattr(layers, name)(amount, seed=seed)
        compare_layers(keras, theirs, ours, x, training=training)


@hypothesis.given(l1=st.sampled_from([0.0, 0.3]), l2=st.sampled_from([0.0, 0.2]), seed=st.integers(0, 2**16))
def test_activity_regularization(keras, l1, l2, seed):
    x = draw((2, 3), seed)
    theirs, ours = keras.layers.ActivityRegularization(l1, l2), layers.ActivityRegularization(l1, l2)
    theirs(x)
    with call_context.entered() as context:
        ours(jnp.asarray(x))
    np.testing.assert_allclose(sum(context.losses), sum(theirs.losses), rtol=1e-5)
