"""Padding, cropping and upsampling against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import compare_layers, few_examples

SHAPES = {1: (2, 7, 3), 2: (2, 6, 7, 3), 3: (1, 6, 5, 7, 2)}


def draw_input(data: Any, rank: int, data_format: str | None) -> np.ndarray:
    shape = SHAPES[rank]
    if data_format == "channels_first":
        shape = (shape[0], shape[-1], *shape[1:-1])
    return np.random.default_rng(data.draw(st.integers(0, 2**16))).normal(size=shape).astype(np.float32)


data_formats = st.sampled_from([None, "channels_last", "channels_first"])
ranks = st.integers(1, 3)
counts = st.integers(0, 2)


@pytest.mark.parametrize("argument", ["padding", "cropping"])
@few_examples
@hypothesis.given(data=st.data(), rank=ranks, data_format=data_formats)
def test_padding_and_cropping(keras, argument, data, rank, data_format):
    name = {"padding": "ZeroPadding{}D", "cropping": "Cropping{}D"}[argument].format(rank)
    pairs = st.tuples(counts, counts)
    amounts = counts | (pairs if rank == 1 else st.tuples(*[counts | pairs] * rank))
    options = {argument: data.draw(amounts)}
    if name == "Cropping1D":
        data_format = None
    else:
        options["data_format"] = data_format
    x = draw_input(data, rank, data_format)
    compare_layers(keras, getattr(keras.layers, name)(**options), getattr(layers, name)(**options), x)


@few_examples
@hypothesis.given(
    data=st.data(),
    rank=ranks,
    data_format=data_formats,
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"]),
)
def test_up_sampling(keras, data, rank, data_format, interpolation):
    sizes = st.integers(1, 3)
    options = {"size": data.draw(sizes if rank == 1 else sizes | st.tuples(*[sizes] * rank))}
    if rank == 1:
        data_format = None
    else:
        options["data_format"] = data_format
    if rank == 2:
        options["interpolation"] = interpolation
    name = f"UpSampling{rank}D"
    x = draw_input(data, rank, data_format)
    compare_layers(keras, getattr(keras.layers, name)(**options), getattr(layers, name)(**options), x)
