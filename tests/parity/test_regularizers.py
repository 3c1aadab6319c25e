"""Regularizers give Keras's penalties, gradients and configs."""

from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from keras_dist import regularizers
from tests.parity.compare import assert_close, compare

FACTORS = st.floats(0.0, 2.0, width=32)
NUMBERS = st.integers(-64, 63).map(lambda n: (2 * n + 1) / 32)  # never 0, where abs has no gradient
MATRICES = st.sampled_from([(3, 4), (4, 2)]).flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=NUMBERS))


def agree(ours: Any, theirs: Any, x: np.ndarray) -> None:
    """Penalty and gradient on `x` are Keras's, and so is the config."""
    compare(lambda x: [jax.value_and_grad(regularizer)(x) for regularizer in (ours, theirs)], x)
    assert ours.get_config() == pytest.approx(theirs.get_config())


@pytest.mark.parametrize("name", ["L1", "L2"])
@given(factor=st.none() | FACTORS, x=MATRICES)
def test_one_factor(keras, name, factor, x):
    theirs = getattr(keras.regularizers, name)(factor)
    again = regularizers.get(keras.regularizers.serialize(theirs))
    agree(getattr(regularizers, name)(theirs.get_config()[name.lower()]), theirs, x)
    agree(again, theirs, x)
    if factor is None:
        compare(lambda x: (getattr(regularizers, name)(None)(x), theirs(x)), x)


@given(l1=FACTORS, l2=FACTORS, x=MATRICES)
def test_two_factors(keras, l1, l2, x):
    agree(regularizers.L1L2(l1, l2), keras.regularizers.L1L2(l1, l2), x)


@pytest.mark.parametrize("mode", ["rows", "columns"])
@given(factor=FACTORS, x=MATRICES)
def test_orthogonal(keras, mode, factor, x):
    ours, theirs = (
        regularizers.OrthogonalRegularizer(factor, mode),
        keras.regularizers.OrthogonalRegularizer(factor, mode),
    )

    def check(ours: Any, theirs: Any) -> None:
        assert_close(ours[0], theirs[0])
        if np.abs(ours[0]) > 1e-3:  # abs has no gradient where rows are orthogonal
            assert_close(ours[1], theirs[1], 1e-4)

    compare(lambda x: [jax.value_and_grad(regularizer)(x) for regularizer in (ours, theirs)], x, check=check)


def test_names_have_the_defaults_of_keras(keras):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    for name in ("l1", "l2", "l1l2", "L1", "L2", "L1L2", "orthogonal_regularizer"):
        agree(regularizers.get(name), keras.regularizers.get(name), x)
