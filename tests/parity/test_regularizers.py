"""Regularizers give Keras's penalties, gradients and configs."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from keras_dist import regularizers

FACTORS = st.floats(0.0, 2.0, width=32)
NUMBERS = st.integers(-64, 63).map(lambda n: (2 * n + 1) / 32)  # never 0, where abs has no gradient
MATRICES = st.sampled_from([(3, 4), (4, 2)]).flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=NUMBERS))


def agree(ours: Any, theirs: Any, x: np.ndarray) -> None:
    """Penalty and gradient on `x` are Keras's, and so is the config."""

    @jax.jit
    def both(x: Any) -> Any:
        return [jax.value_and_grad(regularizer)(x) for regularizer in (ours, theirs)]

    for mine, kerass in zip(*both(x), strict=True):
        assert mine.dtype == kerass.dtype
        np.testing.assert_allclose(mine, kerass, rtol=1e-5, atol=1e-5)
    assert ours.get_config() == pytest.approx(theirs.get_config())


@pytest.mark.parametrize("name", ["L1", "L2"])
@given(factor=st.none() | FACTORS, x=MATRICES)
def test_one_factor(keras, name, factor, x):
    theirs = getattr(keras.regularizers, name)(factor)
    again = regularizers.get(keras.regularizers.serialize(theirs))
    agree(getattr(regularizers, name)(theirs.get_config()[name.lower()]), theirs, x)
    agree(again, theirs, x)
    if factor is None:
        np.testing.assert_allclose(getattr(regularizers, name)(None)(x), theirs(x), rtol=1e-5)


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
    both = jax.jit(lambda x: [jax.value_and_grad(regularizer)(x) for regularizer in (ours, theirs)])
    (penalty, gradient), (expected, expected_gradient) = both(x)
    np.testing.assert_allclose(penalty, expected, rtol=1e-5, atol=1e-5)
    if np.abs(penalty) > 1e-3:  # abs has no gradient where rows are orthogonal
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["l1", "l2", "l1l2", "L1", "L2", "L1L2", "orthogonal_regularizer"])
def test_names_have_the_defaults_of_keras(keras, name):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), "float32")
    ours, theirs = regularizers.get(name), keras.regularizers.get(name)
    assert ours.get_config() == pytest.approx(theirs.get_config())  # type: ignore[union-attr]
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5)  # type: ignore[misc]
