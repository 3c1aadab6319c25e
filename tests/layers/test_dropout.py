"""Dropout and its kin, noise, ActivityRegularization."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers, models
from keras_dist.variables import call_context

MADE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Dropout": (lambda **options: layers.Dropout(0.5, noise_shape=(None, 1, None), seed=1, **options), (3, 4)),
    "SpatialDropout1D": (lambda **options: layers.SpatialDropout1D(0.5, seed=1, **options), (3, 4)),
    "SpatialDropout2D": (lambda **options: layers.SpatialDropout2D(0.5, "channels_first", 1, **options), (4, 3, 2)),
    "SpatialDropout3D": (lambda **options: layers.SpatialDropout3D(0.5, seed=1, **options), (2, 3, 2, 4)),
    "AlphaDropout": (lambda **options: layers.AlphaDropout(0.5, seed=1, **options), (3, 4)),
    "GaussianNoise": (lambda **options: layers.GaussianNoise(0.5, seed=1, **options), (3, 4)),
    "GaussianDropout": (lambda **options: layers.GaussianDropout(0.5, seed=1, **options), (3, 4)),
    "ActivityRegularization": (lambda **options: layers.ActivityRegularization(0.1, 0.2, **options), (3, 4)),
}


@pytest.mark.parametrize("kind", MADE)
def test_shapes_and_masks(kind: str) -> None:
    make, shape = MADE[kind]
    layer, x = make(), jnp.ones((2, *shape))
    np.testing.assert_array_equal(layer(x), x)
    assert layer(layers.Input((*shape[:-1], None))).shape == (None, *shape[:-1], None)
    mask = jnp.ones((2, shape[0]), bool)
    with call_context.entered(True) as context:
        context.set_mask(x, mask)
        assert context.mask_of(layer(x)) is mask


@pytest.mark.parametrize("kind", [kind for kind in MADE if kind != "ActivityRegularization"])
def test_each_step_draws_anew_in_a_compiled_function(kind: str) -> None:
    make, shape = MADE[kind]
    layer = make()
    x = jnp.ones((2, *shape))
    layer(x)
    state = layer.seed_generator.state[...]

    @jax.jit
    def step(state: Any) -> Any:
        copy = make()
        copy(x)
        copy.seed_generator.state[...] = state
        return copy(x, training=True), copy.seed_generator.state[...]

    first, state = step(state)
    second, _ = step(state)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(first, layer(x, training=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape", "dims"),
    [
        (layers.SpatialDropout1D(0.5, seed=3), (4, 5, 6), (1,)),
        (layers.SpatialDropout2D(0.5, seed=3), (4, 5, 6, 3), (1, 2)),
        (layers.SpatialDropout2D(0.5, "channels_first", seed=3), (4, 3, 5, 6), (2, 3)),
        (layers.SpatialDropout3D(0.5, "channels_first", seed=3), (4, 3, 5, 6, 2), (2, 3, 4)),
        (layers.Dropout(0.5, (5, 1), seed=3), (4, 5, 6), (0, 2)),
    ],
)
def test_dims_are_dropped_together(layer: Any, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    outputs = layer(jnp.ones(shape), training=True)
    assert np.ptp(outputs, axis=dims).max() == 0
    assert set(np.unique(outputs)) == {0.0, 2.0}


def test_a_rate_of_one_leaves_nothing_and_of_zero_everything() -> None:
    x = jnp.ones((2, 3))
    assert not layers.Dropout(1)(x, training=True).any()
    assert layers.Dropout(0)(x, training=True).all()


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = jax.random.normal(jax.random.key(0), (200, 200))
    outputs = layers.AlphaDropout(0.3, seed=1)(x, training=True)
    assert float(outputs.mean()) == pytest.approx(0, abs=0.02)
    assert float(outputs.std()) == pytest.approx(1, abs=0.02)


def test_activities_are_added_to_the_loss_of_a_model() -> None:
    model = models.Sequential([layers.Input((2,)), layers.ActivityRegularization(l1=0.5, l2=0.25)])
    model.compile(loss="mse")
    x = np.array([[1.0, -2.0], [2.0, 1.0]])
    assert model.evaluate(x, x, verbose=0) == pytest.approx((0.5 * 6 + 0.25 * 10) / 2)


@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        (layers.SpatialDropout1D(0.5), (1,)),
        (layers.SpatialDropout2D(0.5), (1, 2)),
        (layers.SpatialDropout2D(0.5, "channels_first"), (2, 3)),
    ],
)
def test_spatial_dropout_knows_its_dims_as_all_spatial_layers_do(layer: Any, axes: tuple[int, ...]) -> None:
    assert layer.spatial_axes == axes
    assert [axis for axis, size in enumerate(layer.noise_shape) if size == 1] == list(axes)


def test_build_alone_draws_the_state_of_the_generator() -> None:
    layer = layers.Dropout(0.5, seed=0)
    layer.build((2, 3))
    assert layer.built
