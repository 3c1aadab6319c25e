"""Activations give Keras's values and gradients."""

import functools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from keras_dist import activations

WEIGHTS = np.linspace(-1.0, 2.0, 24, dtype="float32")
SHAPES = st.sampled_from([(4, 6), (2, 4, 3)])
# Odd multiples of 1/64 are never on a kink
NUMBERS = st.integers(-300, 300).map(lambda n: (2 * n + 1) / 64)
INPUTS = SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=NUMBERS))
SLOPES = st.sampled_from([0.0, 0.1, 0.5])
LIMITS = st.sampled_from([0.25, 0.5, 1.0, 3.0])

PLAIN = [
    "exponential",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "linear",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "swish",
    "tanh",
    "tanh_shrink",
]


@functools.cache
def both(keras: Any, name: str, **arguments: Any) -> Callable[..., Any]:
    """The values of an activation of ours and of Keras's, and gradients of a weighted sum, as one program a shape."""

    def summed(package: Any, x: Any) -> Any:
        y = getattr(package, name)(x, **arguments)
        return jnp.sum(y * WEIGHTS[: y.size].reshape(y.shape)), y

    find = jax.grad(summed, argnums=1, has_aux=True)
    return jax.jit(lambda x: (find(activations, x), find(keras.activations, x)))


def agree(keras: Any, name: str, x: np.ndarray, **arguments: Any) -> None:
    """Values, and gradients of a weighted sum of them, are Keras's."""
    for ours, theirs in zip(*both(keras, name, **arguments)(x), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PLAIN)
@given(x=INPUTS)
def test_plain(keras, name, x):
    agree(keras, name, x)


@given(x=INPUTS, negative_slope=SLOPES, max_value=st.none() | LIMITS | st.just(6), threshold=st.just(0.0) | LIMITS)
def test_relu(keras, x, negative_slope, max_value, threshold):
    agree(keras, "relu", x, negative_slope=negative_slope, max_value=max_value, threshold=threshold)


@given(x=INPUTS, threshold=LIMITS.map(lambda limit: -limit), max_value=st.none() | LIMITS, negative_slope=SLOPES)
def test_relu_below_zero(keras, x, threshold, max_value, negative_slope):
    agree(keras, "relu", x, negative_slope=negative_slope, max_value=max_value, threshold=threshold)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "celu", "selu", "silu", "relu6"])
def test_gradients_at_zero(keras, name):
    agree(keras, name, np.zeros((2, 3), "float32"))


@given(x=INPUTS, negative_slope=SLOPES)
def test_leaky_relu(keras, x, negative_slope):
    agree(keras, "leaky_relu", x, negative_slope=negative_slope)


@pytest.mark.parametrize("name", ["elu", "celu"])
@given(x=INPUTS, alpha=LIMITS)
def test_alpha(keras, name, x, alpha):
    agree(keras, name, x, alpha=alpha)


@given(x=INPUTS, b=st.sampled_from([0.5, 1, 4, 9.0]))
def test_squareplus(keras, x, b):
    agree(keras, "squareplus", x, b=b)


@given(x=INPUTS, approximate=st.booleans())
def test_gelu(keras, x, approximate):
    agree(keras, "gelu", x, approximate=approximate)


@pytest.mark.parametrize("name", ["soft_shrink", "hard_shrink"])
@given(x=INPUTS, threshold=LIMITS)
def test_shrinking(keras, name, x, threshold):
    agree(keras, name, x, threshold=threshold)


@given(x=INPUTS, threshold=LIMITS, default_value=SLOPES)
def test_threshold(keras, x, threshold, default_value):
    agree(keras, "threshold", x, threshold=threshold, default_value=default_value)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@given(x=INPUTS, axis=st.sampled_from([-1, 0, 1]))
def test_along_an_axis(keras, name, x, axis):
    agree(keras, name, x, axis=axis)


@given(x=INPUTS)
def test_glu(keras, x):
    agree(keras, "glu", x, axis=-1 if x.ndim == 2 else 1)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_sparsemax_of_one_class(keras, axis):
    # where more than one is left, Keras's values do not add up to 1
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    np.moveaxis(x, axis, -1)[..., 0] += 20
    agree(keras, "sparsemax", x, axis=axis)


@pytest.mark.parametrize(
    "name", ["relu", "leaky_relu", "gelu", "elu", "squareplus", "soft_shrink", "hard_shrink", "celu"]
)
def test_defaults(keras, name):
    agree(keras, name, np.linspace(-3, 3, 24, dtype="float32"))


@pytest.mark.parametrize("name", sorted(set(activations.__all__) - {"get", "serialize", "deserialize"}))
def test_names_that_configs_hold(keras, name):
    assert activations.serialize(getattr(activations, name)) == keras.activations.serialize(
        getattr(keras.activations, name)
    )
