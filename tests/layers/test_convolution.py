"""Convolutions: plain, transposed, depthwise, separable."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from keras_dist import layers
from keras_dist.errors import ModelError

WEIGHTS = {
    "Conv1D": [("kernel", (3, 4, 6)), ("bias", (6,))],
    "Conv2D": [("kernel", (3, 3, 4, 6)), ("bias", (6,))],
    "Conv3D": [("kernel", (3, 3, 3, 4, 6)), ("bias", (6,))],
    "Conv1DTranspose": [("kernel", (3, 6, 4)), ("bias", (6,))],
    "Conv2DTranspose": [("kernel", (3, 3, 6, 4)), ("bias", (6,))],
    "Conv3DTranspose": [("kernel", (3, 3, 3, 6, 4)), ("bias", (6,))],
    "DepthwiseConv1D": [("kernel", (3, 4, 2)), ("bias", (8,))],
    "DepthwiseConv2D": [("kernel", (3, 3, 4, 2)), ("bias", (8,))],
    "SeparableConv1D": [("depthwise_kernel", (3, 4, 2)), ("pointwise_kernel", (1, 8, 6)), ("bias", (6,))],
    "SeparableConv2D": [("depthwise_kernel", (3, 3, 4, 2)), ("pointwise_kernel", (1, 1, 8, 6)), ("bias", (6,))],
}


def make(name: str, /, **options: Any) -> Any:
    """The layer called `name` with 6 filters, or 2 channels for each, and a window of 3."""
    options.setdefault("kernel_size", 3)
    if not name.startswith("Depthwise"):
        options.setdefault("filters", 6)
    if name.startswith(("Depthwise", "Separable")):
        options.setdefault("depth_multiplier", 2)
    return getattr(layers, name)(**options)


def inputs_for(name: str, size: int = 5) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, *(size,) * rank_of(name), 4)), jnp.float32)


def rank_of(name: str) -> int:
    return next(int(letter) for letter in name if letter.isdigit())


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_have_the_names_and_shapes_of_keras(name: str) -> None:
    layer = make(name)
    assert layer(inputs_for(name)).shape[-1] == layer.bias.shape[0]
    assert [(weight.path, weight.shape) for weight in layer.weights] == WEIGHTS[name]
    bare = make(name, use_bias=False)
    bare(inputs_for(name))
    assert [weight.path for weight in bare.weights] == [path for path, _ in WEIGHTS[name][:-1]]


@pytest.mark.parametrize("name", WEIGHTS)
def test_symbolic_shapes_keep_unknown_dims(name: str) -> None:
    rank = rank_of(name)
    layer = make(name, padding="same", strides=2)
    channels = make(name)(inputs_for(name)).shape[-1]
    steps = 10 if "Transpose" in name else 3
    assert layer(layers.Input((*(None,) * rank, 4))).shape == (None, *(None,) * rank, channels)
    assert layer.compute_output_shape((2, *(5,) * rank, 4)) == (2, *(steps,) * rank, channels)
    first = make(name, padding="same", strides=2, data_format="channels_first")
    assert first(layers.Input((4, *(5,) * rank))).shape == (None, channels, *(steps,) * rank)


@pytest.mark.parametrize("name", WEIGHTS)
def test_integers(name: str) -> None:
    full = make(name)
    pixels = jnp.arange(inputs_for(name).size, dtype=jnp.int32).reshape(inputs_for(name).shape)
    np.testing.assert_allclose(full(pixels), full(pixels.astype(jnp.float32)), rtol=1e-6)


@pytest.mark.parametrize("name", WEIGHTS)
def test_layouts_initializers_and_regularizers_reach_the_weights(name: str) -> None:
    prefixes = {"kernel": "depthwise"} if name.startswith("Depthwise") else {}
    for path, shape in WEIGHTS[name]:
        prefix = prefixes.get(path, path.removesuffix("_kernel"))
        layout = ("model",) + (None,) * (len(shape) - 1)
        layer = make(
            name,
            **{
                f"{prefix}_layout": layout,
                f"{prefix}_initializer": "ones",
                f"{prefix}_regularizer": "l2",
                f"{prefix}_constraint": "non_neg",
            },
        )
        layer(inputs_for(name))
        metadata = getattr(layer, path).get_metadata()
        assert metadata["layout"] == layout
        assert type(metadata["regularizer"]).__name__ == "L2"
        assert type(metadata["constraint"]).__name__ == "NonNeg"
        np.testing.assert_array_equal(getattr(layer, path)[...], 1)
        others = [other for other, _ in WEIGHTS[name] if other != path]
        assert all(getattr(layer, other).get_metadata()["layout"] is None for other in others)


def test_a_causal_convolution_sees_no_later_steps() -> None:
    layer = layers.Conv1D(2, 3, padding="causal", dilation_rate=2)
    x = inputs_for("Conv1D", size=9)
    outputs = layer(x)
    assert outputs.shape == (2, 9, 2)
    np.testing.assert_array_equal(layer(x.at[:, 5:].set(7.0))[:, :5], outputs[:, :5])
    assert not np.allclose(layer(x.at[:, 5:].set(7.0))[:, 5], outputs[:, 5])


SPATIAL = {
    "plain": lambda: layers.Conv2D(4, 3, padding="same", activation="tanh"),
    "strides": lambda: layers.Conv2D(4, 5, strides=2, padding="same"),
    "dilation": lambda: layers.Conv2D(4, 3, dilation_rate=3, padding="same"),
    "groups": lambda: layers.Conv2D(4, 3, groups=2, padding="same"),
    "transpose": lambda: layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
    "depthwise": lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
    "separable": lambda: layers.SeparableConv2D(4, 3, padding="same"),
    "max": lambda: layers.MaxPooling2D(3, strides=2, padding="same"),
    "average": lambda: layers.AveragePooling2D(3, strides=1, padding="same"),
    "global": lambda: layers.GlobalAveragePooling2D(keepdims=True),
}


@pytest.mark.parametrize("kind", SPATIAL)
def test_an_image_that_is_sharded_over_its_height_gives_the_same(kind: str) -> None:
    layer = SPATIAL[kind]()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 16, 6, 4)), jnp.float32)
    layer(x)
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def loss(params: Any, x: jax.Array, sharding: Any) -> Any:
        x = x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)
        outputs = nnx.merge(graph, params, rest)(x)
        return jnp.sum(outputs * jnp.cos(jnp.arange(outputs.size)).reshape(outputs.shape)), outputs

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(2, 4), ("data", "spatial"))
    (_, outputs), gradients = step(params, x, NamedSharding(mesh, P("data", "spatial", None, None)))
    (_, expected), expected_gradients = step(params, x, None)
    assert len(expected.sharding.device_set) == 1
    if kind != "global":  # XLA kept the shards and exchanged the borders
        rows = expected.shape[1] // 4
        assert {shard.data.shape[:2] for shard in outputs.addressable_shards} == {(2, rows)}
    for ours, theirs in zip(
        jax.tree.leaves((outputs, gradients)), jax.tree.leaves((expected, expected_gradients)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_all_inputs_have_the_channels_of_the_first() -> None:
    layer = layers.Conv2D(4, 3, data_format="channels_first")
    layer(jnp.ones((2, 3, 8, 8)))
    layer(jnp.ones((2, 3, 6, 7)))
    with pytest.raises(ModelError, match="3 in dim 1"):
        layer(jnp.ones((2, 4, 8, 8)))


def test_an_empty_batch_is_none_of_the_errors() -> None:
    assert layers.Conv2D(4, 3)(jnp.ones((0, 8, 8, 3))).shape == (0, 6, 6, 4)
