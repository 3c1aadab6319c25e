"""Distances between numbers by hand, and where they end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError

Y_TRUE, Y_PRED = [[1.0, 3.0]], [[2.0, 0.0]]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.mean_squared_error, 5),
        (losses.mean_absolute_error, 2),
        (losses.mean_absolute_percentage_error, 100),
        (losses.mean_squared_logarithmic_error, (np.log(3 / 2) ** 2 + np.log(4) ** 2) / 2),
        (losses.huber, (0.5 + 2.5) / 2),
        (losses.log_cosh, (np.log(np.cosh(1)) + np.log(np.cosh(3))) / 2),
        (losses.cosine_similarity, -1 / np.sqrt(10)),
    ],
)
def test_by_hand(loss, expected):
    np.testing.assert_allclose(loss(Y_TRUE, Y_PRED), [expected], rtol=1e-5)


def test_huber_is_linear_from_delta_on():
    np.testing.assert_allclose(losses.Huber(2.0)([[0.0]], [[5.0]]), 2 * 5 - 2)


def test_log_cosh_of_large_errors_is_finite():
    np.testing.assert_allclose(losses.log_cosh([[0.0]], [[1000.0]]), [1000 - np.log(2)], rtol=1e-6)


def test_the_cosine_of_a_zero_vector_is_zero_and_has_a_gradient():
    loss = losses.CosineSimilarity()
    value, gradient = jax.value_and_grad(lambda z: loss(jnp.ones((1, 3)), z))(jnp.zeros((1, 3)))
    assert value == 0 and jnp.isfinite(gradient).all()


@pytest.mark.parametrize("loss", [losses.mean_squared_error, losses.huber, losses.cosine_similarity])
def test_targets_are_not_broadcast(loss):
    with pytest.raises(ModelError, match=loss.__name__):
        loss(jnp.ones((8, 1)), jnp.ones((8, 3)))
