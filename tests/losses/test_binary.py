"""Yes-or-no predictions by hand, and where they end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses


def test_by_hand():
    expected = -np.log([0.9, 0.4])
    np.testing.assert_allclose(losses.binary_crossentropy([[1], [0]], [[0.9], [0.6]]), expected, rtol=1e-5)
    focal = losses.binary_focal_crossentropy([[1], [0]], [[0.9], [0.6]], apply_class_balancing=True)
    np.testing.assert_allclose(focal, expected * np.array([0.25 * 0.1**2, 0.75 * 0.6**2]), rtol=1e-5)


@pytest.mark.parametrize("loss", [losses.binary_crossentropy, losses.binary_focal_crossentropy])
def test_logits_that_are_far_off_keep_their_gradient(loss):
    value, gradient = jax.value_and_grad(lambda z: loss(jnp.ones((1, 1)), z, from_logits=True)[0])(
        jnp.full((1, 1), -50.0)
    )
    np.testing.assert_allclose((value, gradient[0, 0]), (50, -1), rtol=1e-6)


def test_probabilities_of_zero_and_one_are_finite():
    assert jnp.isfinite(losses.binary_crossentropy([[1, 0]], [[0.0, 1.0]])).all()


def test_smoothing_moves_targets_to_the_middle():
    smoothed = losses.BinaryCrossentropy(label_smoothing=0.2)([[1, 0]], [[0.7, 0.2]])
    assert smoothed == losses.BinaryCrossentropy()([[0.9, 0.1]], [[0.7, 0.2]])
