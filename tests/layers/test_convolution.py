"""Convolutions: plain, transposed, depthwise, separable; `tests/parity` compares their values with Keras."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers

RANKS = {
    "Conv1D": 1, "Conv2D": 2, "Conv3D": 3, "Conv1DTranspose": 1, "Conv2DTranspose": 2, "Conv3DTranspose": 3,
    "DepthwiseConv1D": 1, "DepthwiseConv2D": 2, "SeparableConv1D": 1, "SeparableConv2D": 2,
}  # fmt: skip


def make(name: str, /, **options: Any) -> Any:
    options |= {} if name.startswith("Depthwise") else {"filters": 6}
    return getattr(layers, name)(kernel_size=3, **options)


def inputs_for(name: str, size: int = 5) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, *(size,) * RANKS[name], 4)), jnp.float32)


@pytest.mark.parametrize("name", ["Conv2D", "Conv1DTranspose", "DepthwiseConv2D", "SeparableConv1D"])
def test_integers(name: str) -> None:
    full = make(name)
    pixels = jnp.arange(inputs_for(name).size, dtype=jnp.int32).reshape(inputs_for(name).shape)
    np.testing.assert_allclose(full(pixels), full(pixels.astype(jnp.float32)), rtol=1e-6)


@pytest.mark.parametrize("name", RANKS)
def test_layouts_initializers_and_regularizers_reach_the_weights(name: str) -> None:
    kernels = {"Depthwise": ("depthwise",), "Separable": ("depthwise", "pointwise")}.get(name.split("Conv")[0])
    layouts = {prefix: (prefix, *[None] * (RANKS[name] + 1)) for prefix in kernels or ("kernel",)} | {"bias": ("m",)}
    options = {}
    for prefix, layout in layouts.items():
        options[f"{prefix}_layout"], options[f"{prefix}_initializer"] = layout, "ones"
        options[f"{prefix}_regularizer"], options[f"{prefix}_constraint"] = "l2", "non_neg"
    layer = make(name, **options)
    layer(inputs_for(name))
    assert [weight.get_metadata()["layout"] for weight in layer.weights] == [*layouts.values()]
    for weight in layer.weights:
        assert type(weight.get_metadata()["regularizer"]).__name__ == "L2"
        assert type(weight.get_metadata()["constraint"]).__name__ == "NonNeg"
        np.testing.assert_array_equal(weight[...], 1)


def test_a_causal_convolution_sees_no_later_steps() -> None:
    layer = layers.Conv1D(2, 3, padding="causal", dilation_rate=2)
    x = inputs_for("Conv1D", size=9)
    outputs = layer(x)
    assert outputs.shape == (2, 9, 2)
    np.testing.assert_array_equal(layer(x.at[:, 5:].set(7.0))[:, :5], outputs[:, :5])
    assert not np.allclose(layer(x.at[:, 5:].set(7.0))[:, 5], outputs[:, 5])


def test_an_empty_batch_is_none_of_the_errors() -> None:
    assert layers.Conv2D(4, 3)(jnp.ones((0, 8, 8, 3))).shape == (0, 6, 6, 4)
    assert layers.Flatten()(np.ones((0, 3, 4))).shape == (0, 12)
