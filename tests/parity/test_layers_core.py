"""Dense, EinsumDense, embeddings, Flatten, Reshape, Permute, RepeatVector against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
from flax import nnx

from keras_dist import layers
from keras_dist.variables import call_context
from tests.parity.compare import assert_close, cases, compare, compare_layers, picked


@hypothesis.given(
    shape=st.sampled_from([(3,), (2, 4), (2, 3, 2)]),
    dtype=st.sampled_from(["int32", "uint8", "float32"]),
    mask_zero=st.booleans(),
    reversible=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_embeddings(keras, shape, dtype, mask_zero, reversible, seed):
    rows = np.random.default_rng(seed).integers(0, 7, shape).astype(dtype)
    options = {"input_dim": 7, "output_dim": 3, "mask_zero": mask_zero}
    name = "ReversibleEmbedding" if reversible else "Embedding"
    theirs, ours = getattr(keras.layers, name)(**options), getattr(layers, name)(**options)
    compare_layers(keras, theirs, ours, rows, weights_seed=seed)
    graph, state = nnx.split(ours)

    def masks(rows: Any) -> Any:
        with keras.StatelessScope(), call_context.entered() as context:
            found = context.mask_of(nnx.merge(graph, state, copy=True)(rows))
            expected = keras.src.backend.get_keras_mask(theirs(rows))
        assert (found is None) == (expected is None) == (not mask_zero)
        return found, expected

    compare(masks, rows)


@cases(
    shape=st.sampled_from([(2, 4), (2, 3, 4)]),
    tie_weights=st.booleans(),
    reverse_dtype=st.sampled_from([None, "float32"]),
    logit_soft_cap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 2**16),
)
def test_the_way_back(keras, case):
    vectors = np.random.default_rng(case.seed).normal(size=case.shape).astype("float32")
    options = {"input_dim": 7, "output_dim": 4, "tie_weights": case.tie_weights}
    options |= {"reverse_dtype": case.reverse_dtype, "logit_soft_cap": case.logit_soft_cap}
    theirs, ours = keras.layers.ReversibleEmbedding(**options), layers.ReversibleEmbedding(**options)
    compare_layers(keras, theirs, ours, vectors, weights_seed=case.seed, reverse=True)


EQUATIONS: list[tuple[str, Any, tuple[int, ...], str]] = [
    ("ab,bc->ac", 5, (2, 3), "c"),
    ("abc,cd->abd", (4, 5), (2, 4, 3), "bd"),
    ("abc,cde->abde", (4, 2, 5), (2, 4, 3), "e"),
    ("abcd,cde->abe", (None, 5), (2, 4, 3, 2), "e"),
    ("abc,bd->adc", (5, None), (2, 4, 3), "d"),
    ("...b,bc->...c", 5, (2, 4, 3), "c"),
    ("...b,bc->...c", (5,), (2, 3), "c"),
    ("...ab,bc->...ac", (4, 5), (2, 4, 3), "ac"),
    ("ab...,bc->ac...", 5, (2, 4, 3), "c"),
    ("ab...,bc->ac...", 5, (2, 4, 3, 2), "c"),
    ("ab,b->ab", 3, (2, 3), "b"),
]


@hypothesis.given(
    case=st.sampled_from(EQUATIONS),
    use_bias=st.booleans(),
    activation=st.sampled_from([None, "tanh"]),
    initializer=st.sampled_from(["GlorotUniform", "HeNormal", "RandomUniform"]),
    seed=st.integers(0, 2**16),
)
def test_einsum_dense(keras, case, use_bias, activation, initializer, seed):
    equation, output_shape, shape, bias_axes = case
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    options = {"equation": equation, "output_shape": output_shape, "activation": activation}
    options |= {"bias_axes": bias_axes if use_bias else None}
    theirs = keras.layers.EinsumDense(kernel_initializer=getattr(keras.initializers, initializer)(seed=seed), **options)
    ours = layers.EinsumDense(kernel_initializer={"class_name": initializer, "config": {"seed": seed}}, **options)
    theirs.build(shape)
    ours.build(shape)
    assert_close(ours.kernel[...], theirs.kernel.value)  # fan-in and fan-out are the same
    compare_layers(keras, theirs, ours, x, weights_seed=seed)


@cases(
    shape=st.sampled_from([(1, 1), (3, 4), (2, 3, 4), (2, 1, 3, 2)]),
    units=st.sampled_from([1, 3]),
    use_bias=st.booleans(),
    activation=st.sampled_from([None, "relu", "softmax", "gelu"]),
    seed=st.integers(0, 2**16),
)
def test_dense(keras, case):
    x = np.random.default_rng(case.seed).normal(size=case.shape).astype(np.float32)
    options = picked(case, "units", "use_bias", "activation")
    compare_layers(keras, keras.layers.Dense(**options), layers.Dense(**options), x, weights_seed=case.seed)


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


@hypothesis.given(data=st.data(), dtype=st.sampled_from(["float32", "int32"]))
def test_other_places(keras, data, dtype):
    for name, known in CASES.items():
        options, shape = data.draw(st.sampled_from(known))
        theirs, ours = getattr(keras.layers, name)(**options), getattr(layers, name)(**options)
        compare_layers(keras, theirs, ours, np.random.default_rng(0).normal(0, 9, shape).astype(dtype))
        assert ours.compute_output_shape(shape) == tuple(theirs.compute_output_shape(shape))
