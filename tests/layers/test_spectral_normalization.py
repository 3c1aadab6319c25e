"""SpectralNormalization."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def test_training_divides_and_stores_the_kernel_and_inference_uses_it() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, use_bias=False), power_iterations=50)
    layer(X)
    kernel = np.asarray(layer.layer.kernel[...])
    np.testing.assert_allclose(layer(X), X @ kernel, rtol=1e-5, atol=1e-6)
    divided = kernel / np.linalg.norm(kernel, 2)
    np.testing.assert_allclose(layer(X, training=True), X @ divided, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.layer.kernel[...], divided, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer(X), X @ divided, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["dense", "zeta"])
def test_weights_in_the_order_of_keras(name: str) -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, name=name))
    layer(X)
    assert [weight.path for weight in layer.weights] == [f"{name}/kernel", "vector_u", f"{name}/bias"]
    layer.layer.trainable = False
    assert layer.trainable_weights == []


def test_a_kernel_of_zeros_stays() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, kernel_initializer="zeros"))
    np.testing.assert_array_equal(layer(X, training=True), jnp.zeros((4, 5)))
