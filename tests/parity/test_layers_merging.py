"""Layers that make one array of several against Keras."""

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np

from keras_dist import layers
from keras_dist.layers import call_context
from tests.parity.compare import assert_close, compare_layers, few_examples

NAMES = ["Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot"]
SHAPES = [
    [(2, 3, 4), (2, 3, 4)],
    [(2, 3, 4), (2, 1, 4)],
    [(2, 3, 4), (2, 4)],
    [(2,), (2, 3)],
    [(2, 1), (2, 3)],
]


def draw(shapes: list[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype("float32") for shape in shapes]


@few_examples
@hypothesis.given(shapes=st.sampled_from(SHAPES), twice=st.booleans(), seed=st.integers(0, 2**16))
def test_value_by_value(keras, shapes, twice, seed):
    for name in NAMES[:6]:
        inputs = draw(shapes * 2 if twice and name != "Subtract" else shapes, seed)
        compare_layers(keras, getattr(keras.layers, name)(), getattr(layers, name)(), inputs)
        function = name.lower()
        assert_close(getattr(layers, function)(inputs), getattr(keras.layers, function)(inputs))


@few_examples
@hypothesis.given(axis=st.sampled_from([-1, 1, 2, -2]), count=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_concatenate(keras, axis, count, seed):
    shapes = [[2, 3, 4] for _ in range(count)]
    for index, shape in enumerate(shapes):
        shape[axis] = index + 1
    inputs = draw([tuple(shape) for shape in shapes], seed)
    compare_layers(keras, keras.layers.Concatenate(axis), layers.Concatenate(axis), inputs)
    assert_close(layers.concatenate(inputs, axis=axis), keras.layers.concatenate(inputs, axis=axis))


@few_examples
@hypothesis.given(
    case=st.sampled_from(
        [
            ((2, 3), (2, 3), 1),
            ((2, 3), (2, 3), -1),
            ((2, 3, 4), (2, 5, 3), (1, 2)),
            ((2, 3, 4), (2, 4, 5), (-1, -2)),
            ((2, 3), (2, 5, 3), (1, 2)),
            ((2, 3, 4), (2, 4), (2, 1)),
            ((2, 3, 4, 2), (2, 5, 3), (1, 2)),
            ((2, 3, 4), (2, 3, 5, 2), 1),
        ]
    ),
    normalize=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_dot(keras, case, normalize, seed):
    first, second, axes = case
    inputs = draw([first, second], seed)
    options = {"axes": axes, "normalize": normalize}
    compare_layers(keras, keras.layers.Dot(**options), layers.Dot(**options), inputs)
    assert_close(layers.dot(inputs, **options), keras.layers.dot(inputs, **options))


@few_examples
@hypothesis.given(
    masked=st.lists(st.booleans(), min_size=2, max_size=3), axis=st.sampled_from([1, -1]), seed=st.integers(0, 2**16)
)
def test_masks(keras, masked, axis, seed):
    inputs = draw([(2, 5, 3)] * len(masked), seed)
    masks = [np.random.default_rng(seed + index).random((2, 5)) < 0.5 for index in range(len(masked))]
    for name in NAMES:
        given = slice(2 if name in ("Subtract", "Dot") else None)
        options = {"Concatenate": {"axis": axis}, "Dot": {"axes": 2}}.get(name, {})
        tensors = [keras.ops.copy(x) for x in inputs[given]]
        for tensor, mask, wanted in zip(tensors, masks, masked, strict=False):
            if wanted:
                keras.src.backend.set_keras_mask(tensor, jnp.asarray(mask))
        expected = getattr(keras.layers, name)(**options)(tensors)
        with call_context.entered() as context:
            arrays = [jnp.asarray(x) for x in inputs[given]]
            context.set_mask(
                arrays, [mask if wanted else None for mask, wanted in zip(masks, masked, strict=True)][given]
            )
            outputs = getattr(layers, name)(**options)(arrays)
            mask = context.mask_of(outputs)
        assert_close(outputs, expected)
        expected_mask = keras.src.backend.get_keras_mask(expected)
        assert (mask is None) == (expected_mask is None)
        assert_close(mask, expected_mask)
