"""Layers in half precision: the dtypes of Keras, and its values to within rounding."""

from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd

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


@pytest.mark.parametrize("policy", ROUNDING)
@pytest.mark.parametrize("name", INPUTS)
def test_a_layer_gives_what_keras_gives(keras, name, policy):
    options, x = INPUTS[name]
    arguments = (x, x) if name == "MultiHeadAttention" else (x,)
    theirs = getattr(keras.layers, name)(**options, dtype=policy)
    ours = getattr(kd.layers, name)(**options, dtype=policy)
    training = {"training": True} if name == "BatchNormalization" else {}
    for layer in (theirs, ours):
        layer.build(*(array.shape for array in arguments))
    ours.set_weights(theirs.get_weights())
    expected, found = theirs(*arguments, **training), ours(*arguments, **training)
    assert found.dtype == expected.dtype
    assert [weight.dtype for weight in ours.weights] == [weight.dtype for weight in theirs.weights]
    rounding = ROUNDING[policy]
    np.testing.assert_allclose(*[np.asarray(a, "float32") for a in (found, expected)], rtol=rounding, atol=rounding)
    for ours_weight, theirs_weight in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(ours_weight.numpy(), np.asarray(theirs_weight), rtol=rounding, atol=rounding)


def test_losses_and_metrics_are_those_of_keras_on_half_precision(keras):
    y = np.random.default_rng(1).random((4, 3)).astype("float32")
    y_pred = jax.numpy.asarray(y[::-1], "bfloat16")
    for name in ("MeanSquaredError", "CategoricalCrossentropy"):
        expected, found = getattr(keras.losses, name)()(y, y_pred), getattr(kd.losses, name)()(y, y_pred)
        assert found.dtype == expected.dtype == "float32"
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name in ("MeanAbsoluteError", "CategoricalAccuracy"):
        theirs, ours = getattr(keras.metrics, name)(), getattr(kd.metrics, name)()
        theirs.update_state(y, y_pred)
        ours.update_state(y, y_pred)
        assert str(np.asarray(ours.result()).dtype) == "float32"
        np.testing.assert_allclose(ours.result(), theirs.result(), rtol=1e-2)


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
    their_state, their_params = [v.value for v in theirs.variables], [variable.value]
    ours = kd.optimizers.LossScaleOptimizer(kd.optimizers.SGD(0.1, momentum=0.9), 16.0, 2)
    params: Any = {"w": jax.numpy.ones(2)}
    state = ours.init(params)
    for value in (1.0, 2.0, np.inf, 3.0, np.nan, 1.0, 1.0, 1.0):
        grads = jax.numpy.asarray([value, 1.0])
        their_params, their_state = theirs.stateless_apply(their_state, [grads], their_params)
        steps, state = ours.update({"w": grads}, state, params)
        params = jax.tree.map(jax.numpy.add, params, steps)
        np.testing.assert_allclose(params["w"], their_params[0], rtol=1e-6)
        assert float(state.dynamic_scale) == float(their_state[scale_at])
