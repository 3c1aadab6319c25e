"""Convolutions, pooling, padding, cropping and upsampling against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import compare_layers

SHAPES = {1: [(2, 7, 4), (1, 6, 2)], 2: [(2, 6, 5, 4), (1, 5, 7, 2)], 3: [(1, 5, 5, 6, 2)]}
RANKS = st.integers(1, 3)
DATA_FORMATS = st.sampled_from([None, "channels_last", "channels_first"])


def for_each_dim(numbers: Any, rank: int) -> Any:
    """A number for all dims, or one for each."""
    return numbers | st.tuples(*[numbers] * rank)


def agree(keras: Any, data: Any, name: str, options: dict[str, Any], **call: Any) -> None:
    """The layers of this name give the same on an input, whose rank is in the name."""
    shape = data.draw(st.sampled_from(SHAPES[int(name.rpartition("D")[0][-1])]))
    if options.get("data_format") == "channels_first":
        shape = (shape[0], shape[-1], *shape[1:-1])
    x = np.random.default_rng(data.draw(st.integers(0, 2**16))).normal(size=shape).astype(np.float32)
    theirs, ours = getattr(keras.layers, name)(**options), getattr(layers, name)(**options)
    compare_layers(keras, theirs, ours, x, **call)
    assert ours.compute_output_shape(shape) == tuple(theirs.compute_output_shape(shape))


@pytest.mark.parametrize("kind", ["Conv{}D", "Conv{}DTranspose", "DepthwiseConv{}D", "SeparableConv{}D"])
@hypothesis.given(data=st.data(), data_format=DATA_FORMATS, use_bias=st.booleans())
def test_convolutions(keras, kind, data, data_format, use_bias):
    rank = data.draw(RANKS if kind in ("Conv{}D", "Conv{}DTranspose") else st.integers(1, 2))
    name = kind.format(rank)
    options: dict[str, Any] = {
        "kernel_size": data.draw(for_each_dim(st.integers(1, 3), rank)),
        "padding": data.draw(st.sampled_from(["valid", "SAME", "causal"] if name == "Conv1D" else ["valid", "SAME"])),
        "data_format": data_format,
        "use_bias": use_bias,
        "activation": data.draw(st.sampled_from([None, "tanh"])),
    }
    moved = data.draw(st.sampled_from(["strides", "dilation_rate"]))
    options[moved] = data.draw(for_each_dim(st.integers(1, 2), rank))
    if kind == "Conv{}D":
        options["groups"] = data.draw(st.sampled_from([1, 2]))
    if kind != "DepthwiseConv{}D":
        options["filters"] = data.draw(st.sampled_from([2, 4]))
    if kind in ("DepthwiseConv{}D", "SeparableConv{}D"):
        options["depth_multiplier"] = data.draw(st.integers(1, 3))
    if kind == "Conv{}DTranspose" and moved == "strides" and data.draw(st.booleans()):
        strides = np.broadcast_to(options["strides"], rank)
        options["output_padding"] = tuple(data.draw(st.integers(0, int(stride) - 1)) for stride in strides)
    agree(keras, data, name, options)


@hypothesis.given(
    window=st.integers(1, 5), moved=st.integers(1, 4), padding=st.sampled_from(["valid", "same"]), data=st.data()
)
def test_sizes_of_transposed_convolutions(keras, window, moved, padding, data):
    options: dict[str, Any] = {"filters": 1, "kernel_size": window, "padding": padding}
    if data.draw(st.booleans()):
        options |= {"strides": moved, "output_padding": data.draw(st.none() | st.integers(0, moved - 1))}
    else:
        options["dilation_rate"] = min(moved, 3)
    agree(keras, data, "Conv1DTranspose", options, gradients=False)


@pytest.mark.parametrize("kind", ["MaxPooling{}D", "AveragePooling{}D"])
@hypothesis.given(data=st.data(), rank=RANKS, data_format=DATA_FORMATS, padding=st.sampled_from(["valid", "same"]))
def test_pooling(keras, kind, data, rank, data_format, padding):
    sizes = for_each_dim(st.integers(1, 3), rank)
    options = {"pool_size": data.draw(sizes), "strides": data.draw(st.none() | sizes)}
    agree(keras, data, kind.format(rank), {**options, "padding": padding, "data_format": data_format})


@pytest.mark.parametrize("kind", ["GlobalMaxPooling{}D", "GlobalAveragePooling{}D"])
@hypothesis.given(data=st.data(), rank=RANKS, data_format=DATA_FORMATS, keepdims=st.booleans())
def test_global_pooling(keras, kind, data, rank, data_format, keepdims):
    agree(keras, data, kind.format(rank), {"data_format": data_format, "keepdims": keepdims})


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_global_pooling_of_masked_steps(keras, data_format):
    x = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
    mask = np.array([[True, False, True, False], [True, True, False, False]])
    made = (package.GlobalAveragePooling1D(data_format=data_format) for package in (keras.layers, layers))
    compare_layers(keras, *made, x, mask=mask)


@pytest.mark.parametrize("kind", ["AdaptiveMaxPooling{}D", "AdaptiveAveragePooling{}D"])
@hypothesis.given(data=st.data(), rank=RANKS, data_format=DATA_FORMATS)
def test_adaptive_pooling(keras, kind, data, rank, data_format):
    size = data.draw(for_each_dim(st.integers(1, 6), rank))
    agree(keras, data, kind.format(rank), {"output_size": size, "data_format": data_format})


@pytest.mark.parametrize("argument", ["padding", "cropping"])
@hypothesis.given(data=st.data(), rank=RANKS, data_format=DATA_FORMATS)
def test_padding_and_cropping(keras, argument, data, rank, data_format):
    name = {"padding": "ZeroPadding{}D", "cropping": "Cropping{}D"}[argument].format(rank)
    counts = st.integers(0, 2)
    pairs = st.tuples(counts, counts)
    amounts = counts | (pairs if rank == 1 else st.tuples(*[counts | pairs] * rank))
    of_format = {} if name == "Cropping1D" else {"data_format": data_format}
    agree(keras, data, name, {argument: data.draw(amounts), **of_format})


@hypothesis.given(
    data=st.data(),
    rank=RANKS,
    data_format=DATA_FORMATS,
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"]),
)
def test_up_sampling(keras, data, rank, data_format, interpolation):
    size = data.draw(st.integers(1, 3) if rank == 1 else for_each_dim(st.integers(1, 3), rank))
    options = {"size": size} | ({} if rank == 1 else {"data_format": data_format})
    agree(keras, data, f"UpSampling{rank}D", options | ({"interpolation": interpolation} if rank == 2 else {}))
