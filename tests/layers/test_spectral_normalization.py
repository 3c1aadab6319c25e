"""SpectralNormalization."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import ModelError

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def test_the_largest_singular_value_becomes_one() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, use_bias=False), power_iterations=50)
    layer(X)
    kernel = np.asarray(layer.layer.kernel[...])
    expected = X @ kernel / np.linalg.norm(kernel, 2)
    np.testing.assert_allclose(layer(X, training=True), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(layer.layer.kernel[...], kernel)


def test_training_alone_moves_the_vector() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5))
    layer(X)
    before = np.asarray(layer.vector_u[...])
    layer(X)
    np.testing.assert_array_equal(layer.vector_u[...], before)
    layer(X, training=True)
    assert (np.asarray(layer.vector_u[...]) != before).any()


def test_weights_shapes_and_config() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5), power_iterations=2, name="mine")
    assert layer(layers.Input((6,))).shape == (None, 5)
    layer(X)
    assert {weight.path: weight.shape for weight in layer.weights} == {
        "vector_u": (1, 5),
        "dense/kernel": (6, 5),
        "dense/bias": (5,),
    }
    assert [weight.path for weight in layer.non_trainable_weights] == ["vector_u"]
    again = layers.SpectralNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_a_kernel_of_zeros_stays() -> None:
    layer = layers.SpectralNormalization(layers.Dense(5, kernel_initializer="zeros"))
    np.testing.assert_array_equal(layer(X, training=True), jnp.zeros((4, 5)))


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: layers.SpectralNormalization(5), ("5 of type int", "is not a layer")),
        (lambda: layers.SpectralNormalization(layers.Dropout(0.1))(X), ("no kernel", "Dropout")),
        (lambda: layers.SpectralNormalization(layers.Dense(5), 0), ("`power_iterations`",)),
    ],
)
def test_what_cannot_be_is_refused(make: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)
