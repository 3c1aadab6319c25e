"""Recurrent layers against Keras."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import assert_close, cases, compare_layers, picked
from tests.soak import crossed, often

UNITS = 3
STATES = {"SimpleRNN": 1, "GRU": 1, "LSTM": 2}


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def draw_mask(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.6


@cases(
    kind=st.sampled_from(["SimpleRNN", "GRU", "LSTM"]),
    time=st.sampled_from([1, 4]),
    activation=st.sampled_from(["tanh", "relu", None]),
    use_bias=st.booleans(),
    return_sequences=st.booleans(),
    return_state=st.booleans(),
    go_backwards=st.booleans(),
    unroll=st.booleans(),
    reset_after=st.booleans(),
    implementation=st.sampled_from([1, 2]),
    masked=st.booleans(),
    zero_output_for_mask=st.booleans(),
    given_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_recurrent_layers(keras, case):
    options = {
        **picked(
            case, "activation", "use_bias", "return_sequences", "return_state", "go_backwards", "zero_output_for_mask"
        ),
        "unroll": case.unroll and not case.masked,  # in Keras masked steps of unrolled loops give something else
    }
    options |= (
        {} if case.kind == "SimpleRNN" else {"implementation": case.implementation, "recurrent_activation": "sigmoid"}
    )
    options |= {"reset_after": case.reset_after} if case.kind == "GRU" else {}
    call: dict[str, Any] = {"mask": draw_mask(case.seed, 2, case.time)} if case.masked else {}
    if case.given_state:
        call["initial_state"] = [draw(case.seed + state, 2, UNITS) for state in range(STATES[case.kind])]
    theirs, ours = getattr(keras.layers, case.kind)(UNITS, **options), getattr(layers, case.kind)(UNITS, **options)
    compare_layers(keras, theirs, ours, draw(case.seed, 2, case.time, 2), weights_seed=case.seed, **call)


@cases(
    kind=st.sampled_from(["SimpleRNN", "GRU", "LSTM"]),
    merge_mode=st.sampled_from(["concat", "sum", "mul", "ave", None]),
    return_sequences=st.booleans(),
    return_state=st.booleans(),
    own_backward=st.booleans(),
    masked=st.booleans(),
    given_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_bidirectional(keras, case):
    made = []
    for package in (keras.layers, layers):
        options = picked(case, "return_sequences", "return_state")
        layer = getattr(package, case.kind)(UNITS, **options)
        backward = getattr(package, case.kind)(UNITS, activation="relu", go_backwards=True, **options)
        made.append(
            package.Bidirectional(
                layer, merge_mode=case.merge_mode, backward_layer=backward if case.own_backward else None
            )
        )
    call: dict[str, Any] = {"mask": draw_mask(case.seed, 2, 4)} if case.masked else {}
    if case.given_state:
        call["initial_state"] = [draw(case.seed + state, 2, UNITS) for state in range(2 * STATES[case.kind])]
    compare_layers(keras, made[0], made[1], draw(case.seed, 2, 4, 2), weights_seed=case.seed, **call)


@cases(
    kinds=st.lists(st.sampled_from(["SimpleRNNCell", "GRUCell", "LSTMCell"]), min_size=2, max_size=3),
    return_sequences=st.booleans(),
    return_state=st.booleans(),
    go_backwards=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_stacked_cells(keras, case):
    options = picked(case, "return_sequences", "return_state", "go_backwards")
    made = [
        package.RNN([getattr(package, kind)(2 + place) for place, kind in enumerate(case.kinds)], **options)
        for package in (keras.layers, layers)
    ]
    call: dict[str, Any] = {"mask": draw_mask(case.seed, 2, 4)} if case.masked else {}
    compare_layers(keras, made[0], made[1], draw(case.seed, 2, 4, 2), weights_seed=case.seed, **call)


@hypothesis.given(
    inner=st.sampled_from(["Dense", "BatchNormalization", "LSTM"]),
    masked=st.booleans(),
    training=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_time_distributed(keras, inner, masked, training, seed):
    made = []
    for package in (keras.layers, layers):
        layer = (
            package.BatchNormalization(momentum=0.5) if inner == "BatchNormalization" else getattr(package, inner)(3)
        )
        made.append(package.TimeDistributed(layer))
    shape = (2, 3, 4, 2) if inner == "LSTM" else (4, 3, 2)
    call: dict[str, Any] = {"mask": draw_mask(seed, *shape[: 3 if inner == "LSTM" else 2])} if masked else {}
    compare_layers(keras, made[0], made[1], draw(seed, *shape), weights_seed=seed, training=training, **call)


@often
def test_one_seed_drops_the_same(keras):
    x, options = draw(0, 4, 3, 2), {"dropout": 0.4, "seed": 7, "return_sequences": True}
    for kind, recurrent_dropout in crossed(STATES, (0.3, 0.0)):
        made = [
            getattr(package, kind)(UNITS, recurrent_dropout=recurrent_dropout, **options)
            for package in (keras.layers, layers)
        ]
        compare_layers(keras, *made, x, training=True, gradients=False, calls=2)
    stacked = [
        package.RNN([package.LSTMCell(3, dropout=0.5, seed=1), package.GRUCell(4, recurrent_dropout=0.5, seed=2)])
        for package in (keras.layers, layers)
    ]
    compare_layers(keras, *stacked, x, training=True, gradients=False)


@pytest.mark.parametrize("kind", STATES)
def test_first_weights_are_those_of_keras(keras, kind):
    options = {"kernel_initializer": "ones", "bias_initializer": "zeros"}
    options["recurrent_initializer"] = "identity" if kind == "SimpleRNN" else "ones"
    made = [getattr(package, f"{kind}Cell")(UNITS, **options) for package in (layers, keras.layers)]
    for cell in made:
        cell.build((2, 4))
    assert_close(*(cell.get_weights() for cell in made))
