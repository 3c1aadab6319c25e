"""BatchNormalization, LayerNormalization, RMSNormalization, GroupNormalization, UnitNormalization: edges, layouts.

`tests/parity` compares values and statistics with Keras.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers


def images(shape: tuple[int, ...] = (2, 4, 6), seed: int = 0) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


MADE: dict[str, Any] = {
    "batch": lambda **options: layers.BatchNormalization(**options),
    "batch_renorm": lambda **options: layers.BatchNormalization(renorm=True, **options),
    "layer": lambda **options: layers.LayerNormalization(axis=[1, 2], **options),
    "rms": lambda **options: layers.RMSNormalization(**options),
    "group": lambda **options: layers.GroupNormalization(groups=3, **options),
    "unit": lambda **options: layers.UnitNormalization(axis=[1, 2], **options),
}


@pytest.mark.parametrize("kind", MADE)
def test_half_precision_is_computed_in_full(kind: str) -> None:
    layer = MADE[kind](dtype="bfloat16")
    outputs = layer(images() * 100, training=True)
    assert outputs.dtype == jnp.bfloat16
    assert {weight.dtype for weight in layer.weights} <= {jnp.dtype(jnp.bfloat16)}
    expected = MADE[kind]()((images() * 100).astype(jnp.bfloat16).astype(jnp.float32), training=True)
    np.testing.assert_allclose(outputs.astype(jnp.float32), expected, rtol=0.03, atol=0.03)


def test_layouts_reach_the_weights() -> None:
    layer = layers.BatchNormalization(
        gamma_layout=("m",), beta_layout=("n",), moving_mean_layout=("o",), moving_variance_layout=("p",), renorm=True
    )
    layer(images())
    assert {weight.path: weight.get_metadata()["layout"] for weight in layer.weights} == {
        "gamma": ("m",),
        "beta": ("n",),
        "moving_mean": ("o",),
        "moving_variance": ("p",),
        "moving_stddev": ("p",),
        "renorm_mean": ("o",),
        "renorm_stddev": ("p",),
    }
    for other in (
        layers.LayerNormalization(gamma_layout=("m",), beta_layout=("n",)),
        layers.GroupNormalization(groups=2, gamma_layout=("m",), beta_layout=("n",)),
    ):
        other(images())
        assert other.gamma.get_metadata()["layout"] == ("m",)
        assert other.beta.get_metadata()["layout"] == ("n",)
    scaled = layers.RMSNormalization(scale_layout=("m",))
    scaled(images())
    assert scaled.scale.get_metadata()["layout"] == ("m",)


def test_statistics_of_nothing_are_zero() -> None:
    layer = layers.BatchNormalization(momentum=0.0)
    layer(images((2, 3, 4)), training=True, mask=jnp.zeros((2, 3), bool))
    np.testing.assert_array_equal(layer.moving_mean[...], 0)
    np.testing.assert_array_equal(layer.moving_variance[...], 0)


def test_zeros_have_no_norm_and_stay() -> None:
    np.testing.assert_array_equal(layers.UnitNormalization()(jnp.zeros((2, 3))), 0)


def test_a_batch_of_no_rows_leaves_the_statistics_as_they_are() -> None:
    layer = layers.BatchNormalization()
    layer(images(), training=True)
    before = layer.get_weights()
    assert layer(images((0, 4, 6)), training=True).shape == (0, 4, 6)
    np.testing.assert_equal(layer.get_weights(), before)
