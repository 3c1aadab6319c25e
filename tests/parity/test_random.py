"""With one seed, every random function gives the bits of Keras."""

import inspect
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import keras_dist as kd
from keras_dist import random

FUNCTIONS = sorted(name for name in random.__all__ if name.islower() and name != "set_random_seed")
SHAPES = st.sampled_from([(), (3,), (2, 4)])
NUMBERS = st.floats(-5, 5, width=32)
POSITIVE = st.floats(0.125, 5, width=32)
FLOATS = st.sampled_from([None, "float32", "bfloat16"])
FRACTIONS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
INPUTS = np.arange(1, 13, dtype="float32").reshape(4, 3)

ARGUMENTS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "normal": {"shape": SHAPES, "mean": NUMBERS, "stddev": POSITIVE, "dtype": FLOATS},
    "truncated_normal": {"shape": SHAPES, "mean": NUMBERS, "stddev": POSITIVE, "dtype": FLOATS},
    "uniform": {"shape": SHAPES, "minval": st.floats(-5, 0, width=32), "maxval": st.floats(0.5, 5), "dtype": FLOATS},
    "gamma": {"shape": st.sampled_from([(), (2, 4)]), "alpha": POSITIVE, "dtype": FLOATS},
    "beta": {
        "shape": st.just((2, 4)),
        "alpha": POSITIVE,
        "beta": POSITIVE,
        "dtype": st.sampled_from([None, "float32"]),
    },
    "randint": {
        "shape": SHAPES,
        "minval": st.integers(-5, 5),
        "maxval": st.integers(6, 50),
        "dtype": st.sampled_from([None, "int32", "int8", "uint8"]),
    },
    "categorical": {
        "logits": st.just(jnp.log(INPUTS)),
        "num_samples": st.integers(1, 2),
        "dtype": st.sampled_from(["int32", "float32"]),
    },
    "binomial": {
        "shape": SHAPES,
        "counts": st.integers(0, 20).map(float),
        "probabilities": FRACTIONS,
        "dtype": st.sampled_from([None, "float32"]),
    },
    "dropout": {
        "inputs": st.just(jnp.asarray(INPUTS)),
        "rate": FRACTIONS,
        "noise_shape": st.sampled_from([None, (4, 1), (None, 1)]),
    },
    "shuffle": {"x": st.just(jnp.asarray(INPUTS)), "axis": st.sampled_from([0, 1, -1])},
}


def test_all_are_compared():
    assert sorted(ARGUMENTS) == FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_and_defaults(keras, name):
    def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
        return [(parameter.name, parameter.default) for parameter in inspect.signature(function).parameters.values()]

    assert parameters(getattr(random, name)) == parameters(getattr(keras.random, name))


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_a_seed_and_a_generator_give_the_bits_of_keras(keras, name, data, seed):
    arguments = {argument: data.draw(strategy, argument) for argument, strategy in ARGUMENTS[name].items()}
    ours, theirs = random.SeedGenerator(seed), keras.random.SeedGenerator(seed)
    for one, other in ((seed, seed), (ours, theirs), (ours, theirs)):
        found, expected = (
            getattr(package.random, name)(**arguments, seed=given) for package, given in ((kd, one), (keras, other))
        )
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    np.testing.assert_array_equal(ours.state[...], theirs.state.value)
