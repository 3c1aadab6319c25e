"""Overlaps of regions by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError

Y_TRUE = jnp.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
Y_PRED = jnp.array([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])


def test_by_hand():
    np.testing.assert_allclose(losses.dice(Y_TRUE, Y_PRED, axis=1), [1 - 2 / 5, 1], rtol=1e-6)
    np.testing.assert_allclose(losses.dice(Y_TRUE, Y_PRED), 1 - 2 / 5, rtol=1e-6)
    np.testing.assert_allclose(
        losses.tversky(Y_TRUE, Y_PRED, 0.2, 0.9, axis=1), [1 - 1 / (1 + 0.2 + 1.8), 1], rtol=1e-6
    )


@pytest.mark.parametrize("loss", [losses.Dice, losses.Tversky])
def test_regions_may_reach_over_the_batch(loss):
    assert loss(axis=(0, 1), reduction=None)(jnp.ones((2, 4, 3)), jnp.ones((2, 4, 3))).shape == (3,)


@pytest.mark.parametrize("loss", [losses.Dice, losses.Tversky])
def test_weights_need_a_value_for_each_example(loss):
    weight = jnp.array([1.0, 0.0])
    np.testing.assert_allclose(loss(axis=1)(Y_TRUE[:, :2], Y_PRED[:, :2], weight), 1 / 6, rtol=1e-5)
    with pytest.raises(ModelError, match="`sample_weight` does not fit the loss"):
        loss()(Y_TRUE, Y_PRED, weight)
