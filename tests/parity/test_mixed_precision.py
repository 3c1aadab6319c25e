"""Layers in half precision: the dtypes of Keras, and its values to within rounding."""

import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests.parity.compare import assert_close, build, compare

ROUNDING = {"mixed_bfloat16": 2.0**-6, "mixed_float16": 2.0**-9}
SEQUENCE = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
INPUTS: dict[str, Any] = {
    "BatchNormalization": ({}, SEQUENCE),
    "Conv2D": ({"filters": 3, "kernel_size": 3}, SEQUENCE[:, :, :, None]),
    "Dense": ({"units": 4, "activation": "tanh"}, SEQUENCE),
    "Embedding": ({"input_dim": 7, "output_dim": 4}, np.arange(6).reshape(2, 3)),
    "GroupNormalization": ({"groups": 2}, SEQUENCE),
    "LSTM": ({"units": 4, "return_sequences": True}, SEQUENCE),
    "LayerNormalization": ({}, SEQUENCE),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 4}, SEQUENCE),
    "RMSNormalization": ({}, SEQUENCE),
    "Softmax": ({}, SEQUENCE),
}


@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "mixed_bfloat16") for name in INPUTS), ("Dense", "mixed_float16")]
)
def test_a_layer_gives_what_keras_gives(keras, name, policy):
    options, x = INPUTS[name]
    arguments = (x, x) if name == "MultiHeadAttention" else (x,)
    training = {"training": True} if name == "BatchNormalization" else {}
    theirs, ours = (getattr(package, name)(**options, dtype=policy) for package in (keras.layers, kd.layers))
    build(keras, theirs, ours, *(array.shape for array in arguments))
    assert [weight.dtype for weight in ours.weights] == [weight.dtype for weight in theirs.weights]
    random = np.random.default_rng(0)
    values = [random.uniform(0.1, 0.9, weight.shape).astype(weight.dtype) for weight in theirs.weights]
    theirs.set_weights(values)
    ours.set_weights(values)
    graph, state = nnx.split(ours)

    def both(arguments: Any) -> Any:
        with keras.StatelessScope():
            expected = theirs(*arguments, **training), [weight.value for weight in theirs.weights]
        layer = nnx.merge(graph, state, copy=True)
        outputs, after = layer(*arguments, **training), {weight.path: weight.value for weight in layer.weights}
        return (outputs, [after[weight.path] for weight in ours.weights]), expected

    compare(both, arguments, check=functools.partial(assert_close, tolerance=ROUNDING[policy]))


def test_losses_and_metrics_are_those_of_keras_on_half_precision(keras):
    y = np.random.default_rng(1).random((4, 3)).astype("float32")
    y_pred = y[::-1].astype(ml_dtypes.bfloat16)
    for name in ("MeanSquaredError", "CategoricalCrossentropy"):
        made = [getattr(package.losses, name)() for package in (kd, keras)]
        compare(lambda *arrays, made=made: [loss(*arrays) for loss in made], y, y_pred)
    for name in ("MeanAbsoluteError", "CategoricalAccuracy"):
        metrics = [getattr(package.metrics, name)() for package in (kd, keras)]
        states = [[np.asarray(variable.value) for variable in metric.variables] for metric in metrics]

        def results(*arrays: Any, metrics: Any = metrics, states: Any = states) -> Any:
            updated = [m.stateless_update_state(state, *arrays) for m, state in zip(metrics, states, strict=True)]
            return [m.stateless_result(state) for m, state in zip(metrics, updated, strict=True)]

        compare(results, y, y_pred, check=functools.partial(assert_close, tolerance=1e-2))


def test_policies_and_scales_are_those_of_keras(keras):
    for name in (*ROUNDING, "float32", "bfloat16"):
        ours, theirs = kd.mixed_precision.DTypePolicy(name), keras.mixed_precision.DTypePolicy(name)
        for attribute in ("name", "compute_dtype", "variable_dtype"):
            assert getattr(ours, attribute) == getattr(theirs, attribute)
        assert ours.get_config() == theirs.get_config()
    theirs = keras.layers.Dense(3, dtype="mixed_float16", name="d1")
    ours = kd.layers.Dense.from_config(theirs.get_config())
    assert ours.dtype_policy.name == "mixed_float16"
    assert keras.layers.Dense.from_config(ours.get_config()).dtype_policy.name == "mixed_float16"


def test_the_scale_of_the_loss_follows_keras(keras):
    """Steps with and without infinite gradients: weights and scale after each."""
    variable = keras.Variable(np.ones(2, "float32"))
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 16.0, 2)
    theirs.build([variable])
    scale_at = [v.path for v in theirs.variables].index(theirs.dynamic_scale.path)
    ours = kd.optimizers.LossScaleOptimizer(kd.optimizers.SGD(0.1, momentum=0.9), 16.0, 2)

    def step(states: Any, grads: Any) -> Any:
        (params, state), (their_params, their_state) = states
        steps, state = ours.update({"w": grads}, state, params)
        params = jax.tree.map(jax.numpy.add, params, steps)
        their_params, their_state = theirs.stateless_apply(their_state, [grads], their_params)
        after = (params["w"], state.dynamic_scale), (their_params[0], their_state[scale_at])
        return ((params, state), (their_params, their_state)), after

    def both(params: Any, their_state: Any, grads: Any) -> Any:
        states = ({"w": params}, ours.init({"w": params})), ([params], their_state)
        return jax.lax.scan(step, states, grads)[1]

    grads = np.array([[value, 1.0] for value in (1.0, 2.0, np.inf, 3.0, np.nan, 1.0, 1.0, 1.0)], "float32")
    compare(both, np.ones(2, "float32"), [v.value for v in theirs.variables], grads)
