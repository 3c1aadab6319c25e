"""Attention against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import cases, compare_layers, compare_masked, picked

BATCH, TARGET, SOURCE, FEATURES = 2, 3, 4, 4


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def draw_mask(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.6


def compare_projected(keras: Any, kind: str, options: Any, tensors: list[np.ndarray], seed: int, **call: Any) -> None:
    """Compare layers whose call takes query, value and key."""
    theirs, ours = getattr(keras.layers, kind)(**options), getattr(layers, kind)(**options)
    compare_layers(keras, theirs, ours, tensors, apart=True, weights_from=-0.9, weights_seed=seed, **call)
    assert [w.path for w in ours.weights] == [w.path.partition("/")[2] for w in theirs.weights]


masks = st.sampled_from(["none", "value", "value_and_key", "attention", "attention_of_heads", "attention_of_all"])


def masks_of(kind: str, seed: int, heads: int) -> dict[str, Any]:
    found = {
        "value": {"value_mask": draw_mask(seed, BATCH, SOURCE)},
        "value_and_key": {"value_mask": draw_mask(seed, BATCH, SOURCE), "key_mask": draw_mask(seed + 1, BATCH, SOURCE)},
        "attention": {"attention_mask": draw_mask(seed, BATCH, TARGET, SOURCE)},
        "attention_of_heads": {"attention_mask": draw_mask(seed, BATCH, heads, TARGET, SOURCE)},
        "attention_of_all": {"attention_mask": draw_mask(seed, TARGET, SOURCE)},
    }
    return found.get(kind, {})


@cases(
    num_heads=st.sampled_from([1, 2]),
    value_dim=st.sampled_from([None, 5]),
    output_shape=st.sampled_from([None, 3, (2, 3)]),
    use_bias=st.booleans(),
    use_gate=st.booleans(),
    sliding_window=st.sampled_from([None, 2]),
    causal=st.booleans(),
    scores=st.booleans(),
    own_key=st.booleans(),
    masked=masks,
    seed=st.integers(0, 2**16),
)
def test_multi_head_attention(keras, case):
    options = {
        **picked(case, "num_heads", "output_shape", "use_bias", "use_gate", "sliding_window"),
        "key_dim": 3,
        "value_dim": case.value_dim if case.scores else None,  # without scores Keras takes no other value_dim
    }
    tensors = [draw(case.seed, BATCH, TARGET, FEATURES), draw(case.seed + 1, BATCH, SOURCE, FEATURES)]
    tensors += [draw(case.seed + 2, BATCH, SOURCE, 2)] if case.own_key else []
    if case.masked == "attention_of_heads" and (case.causal or case.sliding_window):
        case.masked = "attention"  # Keras adds the dim of heads to the one and not to the other
    if case.masked == "value_and_key" and not case.own_key:
        case.masked = "value"
    call = {
        "return_attention_scores": case.scores,
        "use_causal_mask": case.causal,
        **masks_of(case.masked, case.seed, case.num_heads),
    }
    compare_projected(keras, "MultiHeadAttention", options, tensors, case.seed, **call)


@hypothesis.given(axes=st.sampled_from([None, 1, 2, (1, 2), (-2,)]), use_bias=st.booleans(), seed=st.integers(0, 2**16))
def test_attention_over_several_dims(keras, axes, use_bias, seed):
    options = {"num_heads": 2, "key_dim": 3, "attention_axes": axes, "use_bias": use_bias}
    x = draw(seed, BATCH, 3, 2, FEATURES)
    compare_projected(keras, "MultiHeadAttention", options, [x, x + 1], seed, return_attention_scores=True)


@cases(
    shared_heads=st.sampled_from([1, 2, 4]),
    use_bias=st.booleans(),
    use_gate=st.booleans(),
    sliding_window=st.sampled_from([None, 2]),
    causal=st.booleans(),
    scores=st.booleans(),
    masked=masks,
    seed=st.integers(0, 2**16),
)
def test_grouped_query_attention(keras, case):
    options = {
        **picked(case, "use_bias", "use_gate", "sliding_window"),
        "head_dim": 3,
        "num_query_heads": 4,
        "num_key_value_heads": case.shared_heads,
    }
    if case.masked == "attention_of_heads" and (case.causal or case.sliding_window):
        case.masked = "attention"
    tensors = [draw(case.seed + place, BATCH, size, FEATURES) for place, size in enumerate((TARGET, SOURCE, SOURCE))]
    call = {
        "return_attention_scores": case.scores,
        "use_causal_mask": case.causal,
        **masks_of(case.masked, case.seed, 4),
    }
    compare_projected(keras, "GroupQueryAttention", options, tensors, case.seed, **call)


@cases(
    kind=st.sampled_from(["dot", "concat", "additive"]),
    use_scale=st.booleans(),
    own_key=st.booleans(),
    causal=st.booleans(),
    scores=st.booleans(),
    masked=st.sampled_from([None, "query", "value", "both"]),
    seed=st.integers(0, 2**16),
)
def test_attention(keras, case):
    made = [
        package.AdditiveAttention(case.use_scale)
        if case.kind == "additive"
        else package.Attention(case.use_scale, score_mode=case.kind)
        for package in (keras.layers, layers)
    ]
    tensors = [
        draw(case.seed + place, BATCH, size, FEATURES)
        for place, size in enumerate((TARGET, SOURCE, SOURCE)[: 2 + case.own_key])
    ]
    call: dict[str, Any] = {"return_attention_scores": case.scores, "use_causal_mask": case.causal}
    if case.masked:
        query = draw_mask(case.seed, BATCH, TARGET) if case.masked in ("query", "both") else None
        call["mask"] = [query, draw_mask(case.seed, BATCH, SOURCE) if case.masked in ("value", "both") else None]
    compare_layers(keras, made[0], made[1], tensors, weights_seed=case.seed, **call)


def test_masks_of_tensors_reach_attention_and_go_on(keras):
    mask = np.array([[True, True, False], [True, False, False]])
    x = draw(0, BATCH, 3, FEATURES)
    for scores in (False, True):
        made = (package.MultiHeadAttention(2, 3) for package in (keras.layers, layers))
        compare_masked(keras, *made, x, mask, twice=True, return_attention_scores=scores)


@pytest.mark.parametrize("kind", ["MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention"])
def test_one_seed_drops_the_same(keras, kind):
    sizes = {"MultiHeadAttention": (2, 3), "GroupQueryAttention": (3, 4, 2)}.get(kind, ())
    made = [getattr(package, kind)(*sizes, dropout=0.4, seed=5) for package in (keras.layers, layers)]
    inputs = [draw(0, BATCH, TARGET, FEATURES)] * 2
    compare_layers(keras, *made, inputs, apart=bool(sizes), training=True, gradients=False, calls=2)


@pytest.mark.parametrize("kind", ["Attention", "AdditiveAttention"])
def test_masks_are_given_by_keyword_and_scores_are_those_that_count(keras, kind):
    x, mask = [draw(0, BATCH, SOURCE, FEATURES), draw(1, BATCH, SOURCE, FEATURES)], draw_mask(2, BATCH, SOURCE)
    for package in (keras.layers, layers):
        layer = getattr(package, kind)(dropout=0.5, seed=1)
        np.testing.assert_array_equal(layer.compute_mask(inputs=x, mask=[mask, None]), mask)
        outputs, scores = layer(x, return_attention_scores=True, training=True)
        np.testing.assert_allclose(outputs, np.asarray(scores) @ x[1], atol=1e-5)
        with pytest.raises(ValueError, match=r"list|must be \[query"):
            getattr(package, kind)()(np.ones((3, 2, 2), "float32"))
