"""Flatten, Reshape, Permute, RepeatVector against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np

from keras_dist import layers
from tests.parity.compare import compare_layers, few_examples

CASES: dict[str, list[tuple[dict[str, Any], tuple[int, ...]]]] = {
    "Flatten": [
        ({"data_format": data_format}, shape)
        for data_format in (None, "channels_last", "channels_first")
        for shape in ((2,), (2, 3), (2, 3, 4), (2, 3, 4, 2))
    ],
    "Reshape": [({"target_shape": shape}, (2, 3, 4)) for shape in ((12,), (-1,), (2, -1), (2, 6), [4, 3, 1])],
    "Permute": [({"dims": (2, 1)}, (2, 3, 4)), ({"dims": [3, 1, 2]}, (2, 3, 4, 5)), ({"dims": (1,)}, (2, 3))],
    "RepeatVector": [({"n": 1}, (2, 3)), ({"n": 3}, (2, 3))],
}


@few_examples
@hypothesis.given(data=st.data(), dtype=st.sampled_from(["float32", "int32"]))
def test_other_places(keras, data, dtype):
    for name, cases in CASES.items():
        options, shape = data.draw(st.sampled_from(cases))
        theirs, ours = getattr(keras.layers, name)(**options), getattr(layers, name)(**options)
        compare_layers(keras, theirs, ours, np.random.default_rng(0).normal(0, 9, shape).astype(dtype))
        assert ours.compute_output_shape(shape) == tuple(theirs.compute_output_shape(shape))
