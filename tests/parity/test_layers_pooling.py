"""Pooling against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import compare_layers, few_examples

SHAPES = {1: [(2, 7, 3), (1, 5, 2)], 2: [(2, 5, 6, 3), (1, 7, 4, 2)], 3: [(1, 5, 4, 6, 2)]}


@st.composite
def inputs(draw: Any, rank: int, data_format: str | None) -> np.ndarray:
    shape = draw(st.sampled_from(SHAPES[rank]))
    if data_format == "channels_first":
        shape = (shape[0], shape[-1], *shape[1:-1])
    return np.random.default_rng(draw(st.integers(0, 2**16))).normal(size=shape).astype(np.float32)


data_formats = st.sampled_from([None, "channels_last", "channels_first"])
ranks = st.integers(1, 3)


@pytest.mark.parametrize("kind", ["MaxPooling{}D", "AveragePooling{}D"])
@few_examples
@hypothesis.given(data=st.data(), rank=ranks, data_format=data_formats, padding=st.sampled_from(["valid", "same"]))
def test_pooling(keras, kind, data, rank, data_format, padding):
    sizes = st.integers(1, 3) | st.tuples(*[st.integers(1, 3)] * rank)
    options = {
        "pool_size": data.draw(sizes),
        "strides": data.draw(st.none() | sizes),
        "padding": padding,
        "data_format": data_format,
    }
    name = kind.format(rank)
    x = data.draw(inputs(rank, data_format))
    compare_layers(keras, getattr(keras.layers, name)(**options), getattr(layers, name)(**options), x)


@pytest.mark.parametrize("kind", ["GlobalMaxPooling{}D", "GlobalAveragePooling{}D"])
@few_examples
@hypothesis.given(data=st.data(), rank=ranks, data_format=data_formats, keepdims=st.booleans(), masked=st.booleans())
def test_global_pooling(keras, kind, data, rank, data_format, keepdims, masked):
    options = {"data_format": data_format, "keepdims": keepdims}
    name = kind.format(rank)
    x = data.draw(inputs(rank, data_format))
    call = {}
    if masked and name == "GlobalAveragePooling1D":
        steps = x.shape[2 if data_format == "channels_first" else 1]
        call = {"mask": np.arange(steps) < np.arange(1, len(x) + 1)[:, None]}
    compare_layers(keras, getattr(keras.layers, name)(**options), getattr(layers, name)(**options), x, **call)


@pytest.mark.parametrize("kind", ["AdaptiveMaxPooling{}D", "AdaptiveAveragePooling{}D"])
@few_examples
@hypothesis.given(data=st.data(), rank=ranks, data_format=data_formats)
def test_adaptive_pooling(keras, kind, data, rank, data_format):
    size = data.draw(st.integers(1, 6) | st.tuples(*[st.integers(1, 6)] * rank))
    options = {"output_size": size, "data_format": data_format}
    name = kind.format(rank)
    x = data.draw(inputs(rank, data_format))
    compare_layers(keras, getattr(keras.layers, name)(**options), getattr(layers, name)(**options), x)
