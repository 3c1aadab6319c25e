"""Initializers have Keras's distributions, constants and configs."""

import math
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from keras_dist import initializers

SCALED = ["GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "LecunNormal", "LecunUniform"]
SHAPES = st.sampled_from([(200,), (40, 15), (5, 4, 32)])  # a bias, a dense kernel, a convolution
TRUNCATED = 0.87962566103423978  # standard deviation of a standard normal distribution that ends at -2 and 2
SEEDS = st.integers(0, 2**31)


def limits(keras: Any, initializer: Any, shape: tuple[int, ...]) -> tuple[float, float]:
    """The standard deviation of Keras's formula for `initializer`, and the value that none may pass."""
    fan_in, fan_out = keras.src.initializers.random_initializers.compute_fans(
        shape, initializer.input_axes, initializer.output_axes
    )
    n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[initializer.mode]
    stddev = math.sqrt(initializer.scale / max(1.0, n))
    bounds = {"uniform": math.sqrt(3) * stddev, "truncated_normal": 2 * stddev / TRUNCATED}
    return stddev, bounds.get(initializer.distribution, math.inf)


def check_moments(values: Any, mean: float, stddev: float, bound: float) -> None:
    """Mean and standard deviation are within five standard errors, and no value passes the bound."""
    values, count = np.asarray(values, "float64") - mean, np.size(values)
    assert abs(values.mean()) < 5 * stddev / math.sqrt(count)
    assert abs(values.std() / stddev - 1) < 5 / math.sqrt(2 * count) + 1 / count
    assert np.abs(values).max() <= bound * (1 + 1e-5)
    if math.isfinite(bound):
        assert np.abs(values).max() > bound * (1 - 100 / count)  # a smaller bound would not fit either


@given(
    shape=SHAPES,
    seed=SEEDS,
    scale=st.floats(0.1, 10.0),
    mode=st.sampled_from(["fan_in", "fan_out", "fan_avg"]),
    distribution=st.sampled_from(["truncated_normal", "untruncated_normal", "uniform", "normal", "Uniform"]),
)
def test_variance_scaling(keras, shape, seed, scale, mode, distribution):
    theirs = keras.initializers.VarianceScaling(scale, mode, distribution)
    ours = initializers.VarianceScaling(scale, mode, distribution)
    check_moments(ours(shape, key=jax.random.key(seed)), 0.0, *limits(keras, theirs, shape))


@given(
    seed=SEEDS,
    mode=st.sampled_from(["fan_in", "fan_out", "fan_avg"]),
    axes=st.permutations([0, 1, -1]).flatmap(lambda axes: st.integers(1, 2).map(lambda n: (axes[:n], axes[n:]))),
    leave_out=st.booleans(),
)
def test_axes(keras, seed, mode, axes, leave_out):
    arguments = {"mode": mode, "distribution": "uniform", "input_axes": axes[0], "output_axes": axes[1]}
    if leave_out and len(axes[1]) > 1:
        arguments["output_axes"] = axes[1][:1]
    shape = (4, 10, 15)
    theirs = keras.initializers.VarianceScaling(**arguments)
    values = initializers.VarianceScaling(**arguments)(shape, key=jax.random.key(seed))
    check_moments(values, 0.0, *limits(keras, theirs, shape))


@given(mean=st.floats(-5.0, 5.0), stddev=st.floats(0.01, 5.0), seed=SEEDS)
def test_given_spread(mean, stddev, seed):
    shape, key = (40, 50), jax.random.key(seed)
    check_moments(initializers.RandomNormal(mean, stddev)(shape, key=key), mean, stddev, math.inf)
    truncated = initializers.TruncatedNormal(mean, stddev)(shape, key=key)
    check_moments(truncated, mean, stddev * TRUNCATED, 2 * stddev + 1e-5)
    uniform = initializers.RandomUniform(mean - stddev, mean + stddev)(shape, key=key)
    check_moments(uniform, mean, stddev / math.sqrt(3), stddev + 1e-5)


NAMES = ["random_normal", "truncated_normal", "random_uniform", "orthogonal", "variance_scaling", *SCALED]


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEEDS, shape=st.sampled_from([(3, 4), (4, 3), (2, 3, 4)]))
def test_one_seed_gives_the_values_of_keras(keras, name, seed, shape):
    config = {"class_name": name, "config": {"seed": seed}}
    ours, theirs = (get(config)(shape) for get in (initializers.get, keras.initializers.get))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@given(
    value=st.integers(-5, 5) | st.floats(-5, 5, width=32) | st.booleans(),
    shape=st.sampled_from([(), (3,), (2, 4)]),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", None]),
)
def test_constants(keras, value, shape, dtype):
    for name, arguments in (("Constant", {"value": value}), ("Zeros", {}), ("Ones", {})):
        ours = getattr(initializers, name)(**arguments)(shape, dtype)
        theirs = getattr(keras.initializers, name)(**arguments)(shape, dtype)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours.astype("float32"), theirs.astype("float32"))


@given(gain=st.floats(-3, 3, width=32), shape=st.sampled_from([(3, 3), (2, 4), (4, 2)]))
def test_identity(keras, gain, shape):
    np.testing.assert_array_equal(initializers.Identity(gain)(shape), keras.initializers.Identity(gain)(shape))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Constant", {"value": 0.5}),
        ("Ones", {}),
        ("Orthogonal", {"gain": 2.0, "seed": 1}),
        ("RandomNormal", {"mean": 1.0, "stddev": 2.0, "seed": 1}),
        ("RandomUniform", {"minval": 1.0, "maxval": 2.0, "seed": None}),
        ("TruncatedNormal", {"mean": 1.0, "stddev": 2.0, "seed": 1}),
        ("VarianceScaling", {"scale": 2.0, "mode": "fan_avg", "distribution": "uniform", "seed": 3}),
        ("Zeros", {}),
        *((name, {"seed": 2, "input_axes": [0], "output_axes": [1]}) for name in SCALED),
    ],
)
def test_configs_are_those_of_keras(keras, name, arguments):
    theirs = getattr(keras.initializers, name)(**arguments)
    assert getattr(initializers, name)(**arguments).get_config() == theirs.get_config()
    assert getattr(initializers, name)().get_config() == getattr(keras.initializers, name)().get_config()
    again = initializers.get(keras.initializers.serialize(theirs))
    assert (type(again).__name__, again.get_config()) == (name, theirs.get_config())
