"""Convolutions against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import compare_layers, few_examples

SHAPES = {1: [(2, 7, 4), (1, 6, 2)], 2: [(2, 6, 5, 4), (1, 5, 7, 2)], 3: [(1, 5, 4, 6, 2)]}


@st.composite
def convolutions(draw: Any, kind: str) -> tuple[str, dict[str, Any], np.ndarray]:
    """The name of a layer, its arguments, an input."""
    rank = draw(st.sampled_from([1, 2, 3] if kind in ("Conv{}D", "Conv{}DTranspose") else [1, 2]))
    name = kind.format(rank)
    per_dim = st.integers(1, 3) | st.tuples(*[st.integers(1, 3)] * rank)
    options: dict[str, Any] = {
        "kernel_size": draw(per_dim),
        "padding": draw(st.sampled_from(["valid", "SAME", "causal"] if name == "Conv1D" else ["valid", "SAME"])),
        "data_format": draw(st.sampled_from([None, "channels_last", "channels_first"])),
        "use_bias": draw(st.booleans()),
        "activation": draw(st.sampled_from([None, "tanh"])),
    }
    moved = draw(st.sampled_from(["strides", "dilation_rate"]))
    options[moved] = draw(st.integers(1, 2) | st.tuples(*[st.integers(1, 2)] * rank))
    if kind == "Conv{}D":
        options["groups"] = draw(st.sampled_from([1, 2]))
    if kind != "DepthwiseConv{}D":
        options["filters"] = draw(st.sampled_from([2, 4]))
    if kind in ("DepthwiseConv{}D", "SeparableConv{}D"):
        options["depth_multiplier"] = draw(st.integers(1, 3))
    if kind == "Conv{}DTranspose" and moved == "strides" and draw(st.booleans()):
        strides = np.broadcast_to(options["strides"], rank)
        options["output_padding"] = tuple(draw(st.integers(0, int(stride) - 1)) for stride in strides)
    shape = draw(st.sampled_from(SHAPES[rank]))
    if options["data_format"] == "channels_first":
        shape = (shape[0], shape[-1], *shape[1:-1])
    seed = draw(st.integers(0, 2**16))
    return name, options, np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["Conv{}D", "Conv{}DTranspose", "DepthwiseConv{}D", "SeparableConv{}D"])
@few_examples
@hypothesis.given(data=st.data())
def test_convolutions(keras, kind, data):
    name, options, x = data.draw(convolutions(kind))
    compare_layers(keras, getattr(keras.layers, name)(**options), getattr(layers, name)(**options), x)


@few_examples
@hypothesis.given(window=st.integers(1, 5), stride=st.integers(1, 4), dilation=st.integers(1, 3), data=st.data())
def test_sizes_of_transposed_convolutions(keras, window, stride, dilation, data):
    options: dict[str, Any] = {
        "filters": 1,
        "kernel_size": window,
        "padding": data.draw(st.sampled_from(["valid", "same"])),
    }
    options |= {"strides": stride} if dilation == 1 else {"dilation_rate": dilation}
    if dilation == 1:
        options["output_padding"] = data.draw(st.none() | st.integers(0, stride - 1))
    x = np.random.default_rng(window).normal(size=(1, 4, 1)).astype(np.float32)
    theirs, ours = keras.layers.Conv1DTranspose(**options), layers.Conv1DTranspose(**options)
    compare_layers(keras, theirs, ours, x, gradients=False)
    assert ours.compute_output_shape((1, 4, 1)) == tuple(theirs.compute_output_shape((1, 4, 1)))
