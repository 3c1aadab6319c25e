"""Padding and cropping of unequal sides against numpy."""

import numpy as np
import pytest

from keras_dist import layers

SIDES = ((1, 2), (0, 3))


@pytest.mark.parametrize(("data_format", "spatial"), [("channels_last", (1, 2)), ("channels_first", (2, 3))])
def test_each_side_has_a_number_of_its_own(data_format, spatial):
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype("float32")
    widths = [(0, 0)] * 4
    for dim, sides in zip(spatial, SIDES, strict=True):
        widths[dim] = sides
    padded = np.pad(x, widths)
    np.testing.assert_array_equal(layers.ZeroPadding2D(SIDES, data_format=data_format)(x), padded)
    np.testing.assert_array_equal(layers.Cropping2D(SIDES, data_format=data_format)(padded), x)
