"""Hinge losses by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses


@pytest.mark.parametrize("y_true", [[[0, 1]], [[-1, 1]]])
def test_zeros_and_ones_are_signs(y_true):
    y_pred = [[-0.4, 0.2]]
    np.testing.assert_allclose(losses.hinge(y_true, y_pred), [(0.6 + 0.8) / 2], rtol=1e-6)
    np.testing.assert_allclose(losses.squared_hinge(y_true, y_pred), [(0.36 + 0.64) / 2], rtol=1e-6)


def test_a_batch_with_other_targets_is_as_it_is():
    np.testing.assert_allclose(losses.hinge([[0.0, 1.0], [0.5, 1.0]], jnp.zeros((2, 2))), [1, 1])


def test_classes_keep_a_margin():
    np.testing.assert_allclose(
        losses.categorical_hinge([[0, 1], [1, 0]], [[0.4, 0.6], [3.0, 0.5]]), [0.8, 0.0], rtol=1e-6
    )
