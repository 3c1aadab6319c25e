"""Distributions and counts by hand."""

import numpy as np

from keras_dist import losses


def test_by_hand():
    np.testing.assert_allclose(losses.kl_divergence([[0.5, 0.5]], [[0.25, 0.75]]), [0.5 * np.log(4 / 3)], rtol=1e-5)
    np.testing.assert_allclose(losses.poisson([[2.0, 0.0]], [[2.0, 1.0]]), [(3 - 2 * np.log(2)) / 2], rtol=1e-5)


def test_probabilities_of_zero_are_finite():
    assert np.isfinite(losses.kl_divergence([[0.0, 1.0]], [[1.0, 0.0]])).all()
    assert np.isfinite(losses.poisson([[1.0]], [[0.0]])).all()
