"""SpectralNormalization."""

import jax.numpy as jnp
import numpy as np

from keras_dist import layers

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def test_the_largest_singular_value_becomes_one() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, use_bias=False), power_iterations=50)
    layer(X)
    kernel = np.asarray(layer.layer.kernel[...])
    expected = X @ kernel / np.linalg.norm(kernel, 2)
    np.testing.assert_allclose(layer(X, training=True), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(layer.layer.kernel[...], kernel)


def test_a_kernel_of_zeros_stays() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, kernel_initializer="zeros"))
    np.testing.assert_array_equal(layer(X, training=True), jnp.zeros((4, 5)))
