"""Activation layers against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np

from keras_dist import layers
from tests.parity.compare import calls_of, cases, compare_functions, compare_layers


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, size=shape).astype("float32")


@cases(
    max_value=st.sampled_from([None, 0.0, 2.0]),
    slope=st.sampled_from([0.0, 0.3]),
    threshold=st.sampled_from([0.0, 1.0]),
    alpha=st.sampled_from([1.0, 0.5]),
    shared_axes=st.sampled_from([None, 1, [1], [2], [1, 2]]),
    seed=st.integers(0, 2**16),
)
def test_rectifiers(keras, case):
    x = draw((2, 3, 4), case.seed)
    plain: dict[str, dict[str, Any]] = {
        "ReLU": {"max_value": case.max_value, "negative_slope": case.slope, "threshold": case.threshold},
        "LeakyReLU": {"negative_slope": case.slope},
        "ELU": {"alpha": case.alpha},
        "Activation": {"activation": "swish"},
    }
    ours, theirs = (
        {name: calls_of(getattr(package, name), **plain[name]) for name in plain} for package in (layers, keras.layers)
    )
    compare_functions(ours, theirs, x)
    theirs, ours = (package.PReLU(shared_axes=case.shared_axes) for package in (keras.layers, layers))
    compare_layers(keras, theirs, ours, x, weights_seed=case.seed)
    assert [weight.shape for weight in ours.weights] == [weight.shape for weight in theirs.weights]


@hypothesis.given(
    axis=st.sampled_from([-1, 1, [1], [1, 2], [-1, 0]]),
    mask_shape=st.sampled_from([None, (2, 3, 4), (3, 4), (2, 1, 4), (1,)]),
    mask_dtype=st.sampled_from(["bool", "float32"]),
    seed=st.integers(0, 2**16),
)
def test_softmax(keras, axis, mask_shape, mask_dtype, seed):
    call = {}
    if mask_shape is not None:
        call["mask"] = (np.random.default_rng(seed).random(mask_shape) < 0.5).astype(mask_dtype)
    x = draw((2, 3, 4), seed)
    compare_layers(keras, keras.layers.Softmax(axis), layers.Softmax(axis), x, **call)
