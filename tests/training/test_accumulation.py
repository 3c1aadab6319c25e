"""Accumulated gradients: several batches, equal or not, make the update of one large batch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, losses, optimizers

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(20, 4)).astype("float32")
Y = RANDOM.normal(size=(20, 3)).astype("float32")
WEIGHTS = RANDOM.uniform(0.0, 3.0, 20).astype("float32")
KERNEL = RANDOM.normal(size=(4, 3)).astype("float32")
STEPS = 3
"""Batches of 8, 8 and 4 rows."""


def trained(
    loss: Any, sample_weight: Any = None, accumulate: bool = True, devices: int = 1, **options: Any
) -> list[np.ndarray]:
    with kd.DataParallel(devices=jax.devices()[:devices]).scope():
        model = kd.Sequential([kd.Input((4,)), layers.Dense(3, kernel_regularizer="l2", name="d1")])
    model.set_weights([KERNEL, np.zeros(3, np.float32)])
    optimizer = optimizers.SGD(0.5, gradient_accumulation_steps=STEPS if accumulate else None, clipnorm=0.3)
    model.compile(optimizer, loss, **options)
    size = 8 if accumulate else len(X)
    model.fit(X, Y, batch_size=size, sample_weight=sample_weight, shuffle=False, verbose=0)
    return model.get_weights()


@functools.cache
def of_one_batch(reduction: str, weighted: bool) -> list[np.ndarray]:
    """The update of all rows at once."""
    return trained(losses.MeanSquaredError(reduction=reduction), WEIGHTS if weighted else None, accumulate=False)


def assert_same(found: list[np.ndarray], reduction: str, weighted: bool) -> None:
    for a, b in zip(found, of_one_batch(reduction, weighted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (losses.MeanSquaredError(), "sum_over_batch_size"),
        (losses.MeanSquaredError(reduction="mean_with_sample_weight"), "mean_with_sample_weight"),
        (lambda y, y_pred: jnp.mean((y - y_pred) ** 2, axis=-1), "sum_over_batch_size"),
    ],
    ids=["sum_over_batch_size", "mean_with_sample_weight", "callable"],
)
def test_a_shorter_last_batch_counts_for_less(loss: Any, reduction: str) -> None:
    assert_same(trained(loss, WEIGHTS), reduction, weighted=True)


def test_a_scalar_loss_counts_as_the_mean_over_the_rows() -> None:
    assert_same(trained(lambda y, y_pred: jnp.mean((y - y_pred) ** 2)), "sum_over_batch_size", weighted=False)


def test_on_a_mesh_and_in_one_execution() -> None:
    loss = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    found = trained(loss, WEIGHTS, devices=4, steps_per_execution=3)
    assert_same(found, "mean_with_sample_weight", weighted=True)


def test_a_sum_is_divided_by_the_number_of_steps_alone() -> None:
    params: Any = jnp.zeros(3)
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    assert losses.MeanSquaredError(reduction="sum").divisor(Y, Y) == 1.0
    state = optimizer.init(params)
    for _ in range(2):
        steps, state = optimizer.update(jnp.ones(3), state, params)
    np.testing.assert_allclose(steps, -jnp.ones(3))


def test_values_that_a_mask_leaves_out_do_not_count() -> None:
    mask = np.arange(20) % 3 > 0
    assert float(losses.MeanSquaredError().divisor(Y, Y, mask=mask)) == mask.sum()
    weighted = losses.MeanSquaredError(reduction="mean_with_sample_weight").divisor(Y, Y, WEIGHTS, mask)
    np.testing.assert_allclose(weighted, WEIGHTS[mask].sum(), rtol=1e-6)


def test_batches_without_any_weight_change_nothing() -> None:
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    state: Any = optimizer.init(jnp.zeros(3))
    for _ in range(2):
        steps, state = optimizer.update(jnp.zeros(3), state, jnp.zeros(3), batch_weight=0.0)
    np.testing.assert_array_equal(steps, jnp.zeros(3))


def test_it_goes_on_under_a_loss_scale() -> None:
    inner = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer, params = optimizers.LossScaleOptimizer(inner, 8.0), jnp.zeros(2)
    state: Any = optimizer.init(params)
    for gradient, weight in ((1.0, 3.0), (5.0, 1.0)):
        steps, state = optimizer.update(8 * gradient * jnp.ones(2), state, params, batch_weight=weight)
    np.testing.assert_allclose(steps, [-2.0, -2.0])
