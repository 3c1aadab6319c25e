"""Initializers have Keras's distributions, constants and configs."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from keras_dist import initializers

SCALED = ["GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "LecunNormal", "LecunUniform"]
SPREADS = ["truncated_normal", "untruncated_normal", "uniform"]
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("RandomNormal", {"mean": 1.0, "stddev": 2.0}),
    ("TruncatedNormal", {"mean": -1.0, "stddev": 0.5}),
    ("RandomUniform", {"minval": 1.0, "maxval": 3.0}),
    ("Orthogonal", {"gain": 2.0}),
    *(("VarianceScaling", {"scale": 2.0, "mode": f"fan_{mode}"}) for mode in ("in", "out", "avg")),
    *(("VarianceScaling", {"distribution": spread, "input_axes": [0], "output_axes": [1]}) for spread in SPREADS),
    *((name, {"input_axes": [-1], "output_axes": [0]}) for name in ("HeNormal", "GlorotUniform")),
    *((name, {}) for name in ("RandomNormal", "TruncatedNormal", "RandomUniform", "Orthogonal", *SCALED)),
]


@pytest.mark.parametrize(("name", "config"), CONFIGS)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from([(3, 4), (4, 3), (2, 3, 4)]))
def test_one_seed_gives_the_values_of_keras(keras, name, config, seed, shape):
    described = {"class_name": name, "config": {**config, "seed": seed}}
    ours, theirs = (get(described)(shape) for get in (initializers.get, keras.initializers.get))
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
