"""Activations, and what `activations.get` accepts."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from keras_dist import activations
from keras_dist.errors import ModelError

X = np.linspace(-7.0, 7.0, 12, dtype="float32").reshape(2, 6)
NAMES = sorted(set(activations.__all__) - {"deserialize", "get", "serialize"})
FUNCTIONS = [name for name in NAMES if name not in ("hard_swish", "swish", "threshold")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_shape_and_dtype_stay(dtype: str) -> None:
    for name in FUNCTIONS:
        value = jax.eval_shape(activations.get(name), jax.ShapeDtypeStruct(X.shape, dtype))
        assert value.dtype == jnp.dtype(dtype), name
        assert value.shape == ((2, 3) if name == "glu" else (2, 6)), name


def test_lists_and_traces() -> None:
    functions = {name: getattr(activations, name) for name in FUNCTIONS if name != "linear"}
    both = jax.jit(lambda x: {name: (f(X.tolist()), f(x)) for name, f in functions.items()})(X)
    for name, (found, expected) in both.items():
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)


sparsemax = jax.jit(activations.sparsemax)


@given(hnp.arrays(np.float32, (3, 5), elements=st.integers(-20, 20).map(lambda n: n / 8)))
def test_sparsemax_is_the_nearest_distribution(x: np.ndarray) -> None:
    probabilities = np.asarray(sparsemax(x))
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-5)
    assert np.all(probabilities >= 0)
    # one threshold a row: taken from all that is left, and not reached by the rest
    threshold = np.where(probabilities > 0, x - probabilities, -np.inf).max(-1, keepdims=True)
    np.testing.assert_allclose(probabilities, np.maximum(x - threshold, 0), atol=1e-5)


def test_sparsemax_is_exact_about_zeros() -> None:
    assert sparsemax(np.array([3.0, 1.0, 1.5], "float32")).tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(sparsemax(np.array([0.5, 0.25, -3.0], "float32")), [0.625, 0.375, 0.0])


def test_glu_needs_two_halves() -> None:
    with pytest.raises(ModelError, match="glu needs an even dim") as caught:
        activations.glu(jnp.ones((2, 3)))
    assert "(2, 3)" in caught.value.given
