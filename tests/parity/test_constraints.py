"""Constraints give Keras's weights and configs."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given
from hypothesis.extra import numpy as hnp

from keras_dist import constraints
from tests.parity.compare import compare

LENGTHS = st.floats(0.0, 4.0, width=32)
AXES = st.sampled_from([0, 1, -1, [0], [0, 1]])
NUMBERS = st.integers(-64, 64).map(lambda n: n / 16)
WEIGHTS = st.sampled_from([(3, 4), (2, 3, 2)]).flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=NUMBERS))


def agree(ours: Any, theirs: Any, w: np.ndarray, keras: Any) -> None:
    """The weight is Keras's, and so is the config; one made from Keras's config does the same."""
    again = constraints.get(keras.constraints.serialize(theirs))
    assert ours.get_config() == again.get_config() == theirs.get_config()
    compare(lambda w: ([ours(w), again(w)], [theirs(w)] * 2), w, note=f"{theirs.get_config()}")


@given(max_value=LENGTHS, axis=AXES, w=WEIGHTS)
def test_max_norm(keras, max_value, axis, w):
    agree(constraints.MaxNorm(max_value, axis), keras.constraints.MaxNorm(max_value, axis), w, keras)


@given(axis=AXES, w=WEIGHTS)
def test_unit_norm(keras, axis, w):
    agree(constraints.UnitNorm(axis), keras.constraints.UnitNorm(axis), w, keras)


@given(bounds=st.tuples(LENGTHS, LENGTHS).map(sorted), rate=st.floats(0.0, 1.0, width=32), axis=AXES, w=WEIGHTS)
def test_min_max_norm(keras, bounds, rate, axis, w):
    ours, theirs = (cls(*bounds, rate, axis) for cls in (constraints.MinMaxNorm, keras.constraints.MinMaxNorm))
    agree(ours, theirs, w, keras)


@given(w=WEIGHTS)
def test_defaults(keras, w):
    for name in ("max_norm", "min_max_norm", "non_neg", "unit_norm", "MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"):
        agree(constraints.get(name), keras.constraints.get(name), w, keras)
