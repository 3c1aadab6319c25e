"""Activations, and what `activations.get` accepts."""

import functools
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from keras_dist import activations, saving
from keras_dist.errors import ConfigError, ModelError, UnknownNameError

X = np.linspace(-7.0, 7.0, 12, dtype="float32").reshape(2, 6)
NAMES = sorted(set(activations.__all__) - {"deserialize", "get", "serialize"})
FUNCTIONS = [name for name in NAMES if name not in ("hard_swish", "swish", "threshold")]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_shape_and_dtype_stay(name: str, dtype: str) -> None:
    value = activations.get(name)(jnp.asarray(X, dtype))
    assert value.dtype == jnp.dtype(dtype)
    assert value.shape == ((2, 3) if name == "glu" else (2, 6))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "linear"])
def test_lists_and_traces(name: str) -> None:
    function: Callable[[Any], Any] = getattr(activations, name)
    np.testing.assert_allclose(function(X.tolist()), jax.jit(function)(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "x", "expected"),
    [
        ({}, [-2.0, 0.0, 3.0], [0.0, 0.0, 3.0]),
        ({"negative_slope": 0.5}, [-2.0, 0.0, 3.0], [-1.0, 0.0, 3.0]),
        ({"max_value": 2.0}, [-2.0, 1.0, 3.0], [0.0, 1.0, 2.0]),
        ({"threshold": 1.0}, [-2.0, 0.5, 3.0], [0.0, 0.0, 3.0]),
        ({"threshold": 1.0, "negative_slope": 0.5, "max_value": 2.0}, [-2.0, 0.5, 3.0], [-1.5, -0.25, 2.0]),
        ({"threshold": -1.0}, [-2.0, -0.5, 3.0], [0.0, -0.5, 3.0]),
    ],
)
def test_relu_with_arguments(arguments: Any, x: Any, expected: Any) -> None:
    assert activations.relu(x, **arguments).tolist() == expected


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axes(axis: int) -> None:
    for function in (activations.softmax, activations.sparsemax):
        np.testing.assert_allclose(function(X, axis).sum(axis), 1.0, rtol=1e-5)
    np.testing.assert_allclose(jnp.exp(activations.log_softmax(X, axis)).sum(axis), 1.0, rtol=1e-5)
    assert activations.glu(X, axis).shape[axis] == X.shape[axis] // 2


@given(hnp.arrays(np.float32, (3, 5), elements=st.integers(-20, 20).map(lambda n: n / 8)))
def test_sparsemax_is_the_nearest_distribution(x: np.ndarray) -> None:
    probabilities = np.asarray(activations.sparsemax(x))
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-5)
    assert np.all(probabilities >= 0)
    # one threshold a row: taken from all that is left, and not reached by the rest
    threshold = np.where(probabilities > 0, x - probabilities, -np.inf).max(-1, keepdims=True)
    np.testing.assert_allclose(probabilities, np.maximum(x - threshold, 0), atol=1e-5)


def test_sparsemax_is_exact_about_zeros() -> None:
    assert activations.sparsemax([3.0, 1.0, 1.5]).tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(activations.sparsemax([0.5, 0.25, -3.0]), [0.625, 0.375, 0.0])


def test_glu_needs_two_halves() -> None:
    with pytest.raises(ModelError, match="glu cannot halve its input") as caught:
        activations.glu(jnp.ones((2, 3)))
    assert "(2, 3)" in caught.value.given


def test_names_functions_and_none() -> None:
    assert len(NAMES) == 32
    for name in set(NAMES) - {"threshold"}:
        assert activations.get(name) is getattr(activations, name)
    assert activations.swish is activations.silu
    assert activations.hard_swish is activations.hard_silu
    assert activations.get(None) is activations.linear
    assert activations.get(jax.nn.relu) is jax.nn.relu
    clipped = functools.partial(activations.relu, max_value=1.0)
    assert activations.get(clipped) is clipped


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"swish", "hard_swish", "threshold"}))
def test_functions_are_written_down_by_name(name: str) -> None:
    function = getattr(activations, name)
    assert activations.serialize(function) == name
    assert activations.deserialize(name) is function
    config = json.loads(json.dumps(saving.serialize_keras_object(function)))
    assert config["module"] == "keras_dist.activations"
    for read in (activations.get, activations.deserialize, saving.deserialize_keras_object):
        assert read(config) is function


def test_functions_of_keras_are_read() -> None:
    for module in ("builtins", "keras.activations"):
        config = {"module": module, "class_name": "function", "config": "relu", "registered_name": "function"}
        assert activations.get(config) is activations.relu


def test_custom_objects() -> None:
    def double(x: Any) -> Any:
        return 2 * x

    config = activations.serialize(double)
    assert config["config"] == "double"
    assert activations.deserialize(config, {"double": double}) is double
    assert activations.deserialize("double", {"double": double}) is double
    with pytest.raises(ConfigError, match="'double', which is not known"):
        activations.deserialize(config)
    saving.register_keras_serializable("tests_of_activations")(double)
    assert activations.get(activations.serialize(double)) is double
    assert activations.get("tests_of_activations>double") is double


@pytest.mark.parametrize(
    ("identifier", "error", "words"),
    [
        ("rellu", UnknownNameError, r"unknown activation 'rellu' \(did you mean 'relu'\?\)"),
        (3, ModelError, "cannot be called as activation"),
        (lambda: 0.0, ModelError, "cannot be called as activation"),
        (lambda x, y: 0.0, ModelError, "cannot be called as activation"),
        ("threshold", ModelError, "cannot be called as activation"),
        ({"class_name": "function", "config": "rellu"}, ConfigError, "'rellu', which is not known"),
        ({"class_name": "relu", "config": {}}, ConfigError, "'relu', which is not known"),
    ],
)
def test_what_is_no_activation_is_named(identifier: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        activations.get(identifier)
    assert caught.value.given
    assert caught.value.fix
