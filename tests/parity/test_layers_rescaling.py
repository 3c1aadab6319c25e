"""Rescaling, Normalization, CategoryEncoding, Masking, Identity and Lambda against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np

from keras_dist import layers
from keras_dist.variables import call_context
from tests.parity.compare import assert_close, compare, compare_layers


def draw(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(2, 5, size=shape).astype(dtype)


@hypothesis.given(
    scale=st.sampled_from([2, 1 / 255, [0.5, 2.0, 3.0, -1.0], np.array([1.0, 2.0, 3.0, 4.0])]),
    offset=st.sampled_from([0.0, -1, [1.0, 2.0, 3.0, 4.0]]),
    dtype=st.sampled_from(["float32", "uint8"]),
    seed=st.integers(0, 2**16),
)
def test_rescaling(keras, scale, offset, dtype, seed):
    x = np.abs(draw((2, 3, 4), seed)).astype(dtype)
    compare_layers(keras, keras.layers.Rescaling(scale, offset), layers.Rescaling(scale, offset), x)


@hypothesis.given(
    axis=st.sampled_from([-1, 1, None, (1, 2), [2, 1], (-1,)]),
    invert=st.booleans(),
    given_as=st.sampled_from(["array", "jax", "batches", "pairs"]),
    seed=st.integers(0, 2**16),
)
def test_normalization_adapts(keras, axis, invert, given_as, seed):
    data, x = draw((7, 3, 4), seed), draw((2, 3, 4), seed + 1)
    batches = [data[:4], data[4:5], data[5:]]
    wanted = {
        "array": data,
        "jax": jnp.asarray(data),
        "batches": batches,
        "pairs": [(batch, np.zeros(len(batch))) for batch in batches],
    }[given_as]
    theirs, ours = keras.layers.Normalization(axis, invert=invert), layers.Normalization(axis, invert=invert)
    theirs.adapt(data)  # of batches it needs tensorflow
    ours.adapt(wanted)
    assert_close(ours.get_weights(), theirs.get_weights())
    assert_close(ours(x), theirs(x))
    assert [weight.name for weight in ours.weights] == [weight.name for weight in theirs.weights]
    assert not any(weight.trainable for weight in ours.weights)


@hypothesis.given(
    case=st.sampled_from(
        [
            (-1, 2.0, 3.0),
            (None, 2.0, 3.0),
            (-1, [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 0.0]),
            ((1, 2), np.ones((3, 4)), np.full((3, 4), 2.0)),
            ((1, 2), [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 0.0]),
            (1, [1.0, 2.0, 3.0], [1.0, 4.0, 9.0]),
        ]
    ),
    invert=st.booleans(),
    dtype=st.sampled_from(["float32", "int32"]),
    seed=st.integers(0, 2**16),
)
def test_normalization_by_given_numbers(keras, case, invert, dtype, seed):
    axis, mean, variance = case
    options = {"axis": axis, "mean": mean, "variance": variance, "invert": invert}
    x = draw((2, 3, 4), seed, dtype)
    compare_layers(keras, keras.layers.Normalization(**options), layers.Normalization(**options), x)


@hypothesis.given(
    mode=st.sampled_from(["multi_hot", "binary", "one_hot", "count"]),
    shape=st.sampled_from([(4,), (2, 3), (2, 1), (2, 3, 2)]),
    weighted=st.booleans(),
    dtype=st.sampled_from(["int32", "uint8"]),
    seed=st.integers(0, 2**16),
)
def test_category_encoding(keras, mode, shape, weighted, dtype, seed):
    x = np.random.default_rng(seed).integers(0, 5, shape).astype(dtype)
    call: dict[str, Any] = {"count_weights": np.abs(draw(shape, seed))} if weighted and mode == "count" else {}
    options = {"num_tokens": 5, "output_mode": mode}
    theirs, ours = keras.layers.CategoryEncoding(**options), layers.CategoryEncoding(**options)
    compare_layers(keras, theirs, ours, x, gradients=False, **call)


@hypothesis.given(mask_value=st.sampled_from([0.0, -1, 2]), seed=st.integers(0, 2**16))
def test_masks_that_begin_and_go_on(keras, mask_value, seed):
    x = np.random.default_rng(seed).integers(-1, 2, (2, 5, 2)).astype("float32")
    compare_layers(keras, keras.layers.Masking(mask_value), layers.Masking(mask_value), x)
    compare_layers(keras, keras.layers.Identity(), layers.Identity(), x)

    def scaled(inputs: Any, factor: float, training: bool = False, mask: Any = None) -> Any:
        inputs = inputs * factor if training else inputs
        return inputs if mask is None else jnp.where(mask[..., None], inputs, 9.0)

    chains = []
    for package in (keras.layers, layers):
        function = package.Lambda(scaled, arguments={"factor": 3.0}, mask=lambda inputs, mask: ~mask)
        chains.append([package.Masking(mask_value), package.Identity(), package.Dropout(0.1), function])
    for layer in chains[1]:
        layer.build(x.shape)

    def both(x: Any) -> Any:
        expected, found = (x, x)
        with keras.StatelessScope(), call_context.entered() as context:
            for theirs, ours in zip(*chains, strict=True):
                expected, found = theirs(expected), ours(found)
            return (found, context.mask_of(found)), (expected, keras.src.backend.get_keras_mask(expected))

    compare(both, x)
