"""Operators and methods of symbolic tensors, against those of Keras."""

import operator

import numpy as np
import pytest

import keras_dist as kd

FUNCTIONS = {
    "and": lambda x, y: (x > 1.0) & (y > 1.0),
    "and of numbers": lambda x, y: x & y,
    "or": lambda x, y: (x > 1.0) | (y > 1.0),
    "xor": lambda x, y: (x > 1.0) ^ (y > 1.0),
    "and from the right": lambda x, y: True & (y > 1.0),
    "not": lambda x, y: ~(x > 1.0),
    "unequal": operator.ne,
    "round": lambda x, y: round(x / 3.0, 1),
    "round to integers": lambda x, y: round(x / 3.0),
    "reshape": lambda x, y: x.reshape((-1, 2, 2)),
    "squeeze": lambda x, y: x.reshape((-1, 4, 1)).squeeze(),
    "squeeze an axis": lambda x, y: x.reshape((-1, 1, 4, 1)).squeeze(axis=1),
    "slice": lambda x, y: x[:, 1:3] + y[..., ::2],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_give_what_they_give_in_keras(keras, name):
    values = [np.array([[0.0, 1.0, 2.0, 3.0], [4.0, 2.0, 0.0, 1.0]], np.float32), np.full((2, 4), 2.0, np.float32)]
    found = []
    for library in (kd, keras):
        inputs = [library.Input((4,)), library.Input((4,))]
        outputs = FUNCTIONS[name](*inputs)
        found.append((outputs.shape, outputs.dtype, np.asarray(library.Model(inputs, outputs)(values))))
    (shape, dtype, ours), (expected_shape, expected_dtype, theirs) = found
    assert (shape, dtype) == (expected_shape, expected_dtype)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_sources_of_a_tensor_are_found(keras):
    for library in (kd, keras):
        a, b, c = (library.Input((3,), name=name) for name in "abc")
        total = library.layers.Add()([a * 2.0, b]) + a
        assert [source.name for source in library.utils.get_source_inputs(total)] == ["a", "b"]
        assert [source.name for source in library.utils.get_source_inputs(c)] == ["c"]
        assert library.utils.is_keras_tensor(total) and not library.utils.is_keras_tensor(np.ones(3))
