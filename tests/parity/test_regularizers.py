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
    weight = jnp.asarray(x)
    our_value, our_gradient = jax.value_and_grad(ours)(weight)
    their_value, their_gradient = jax.value_and_grad(theirs)(weight)
    assert our_value.dtype == their_value.dtype
    np.testing.assert_allclose(our_value, their_value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(our_gradient, their_gradient, rtol=1e-5, atol=1e-5)
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
    np.testing.assert_allclose(ours(x), theirs(jnp.asarray(x)), rtol=1e-5, atol=1e-5)
    gradients = (jax.grad(regularizer)(jnp.asarray(x)) for regularizer in (ours, theirs))
    if np.abs(np.asarray(ours(x))) > 1e-3:  # abs has no gradient where rows are orthogonal
        np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["l1", "l2", "l1l2", "L1", "L2", "L1L2", "orthogonal_regularizer"])
def test_names_have_the_defaults_of_keras(keras, name):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), "float32")
    ours, theirs = regularizers.get(name), keras.regularizers.get(name)
    assert ours.get_config() == pytest.approx(theirs.get_config())  # type: ignore[union-attr]
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5)  # type: ignore[misc]
