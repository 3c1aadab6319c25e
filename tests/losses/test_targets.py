"""Ranks and shapes of targets beside those of predictions."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist.errors import ModelError
from keras_dist.losses.targets import as_arrays, from_numbers, matched


@pytest.mark.parametrize("value", [None, [], [jnp.ones(2), jnp.ones(2)], {"a": 1.0}, "mse"])
def test_what_holds_no_numbers_is_as_it_is(value):
    assert from_numbers(value) is value


def test_integer_predictions_hold_fractions():
    y_true, y_pred = as_arrays("it", np.arange(3), np.arange(3))
    assert y_true.dtype == jnp.int32 and y_pred.dtype == jnp.float32


def test_targets_take_the_dtype_of_predictions():
    y_true, y_pred = matched("it", np.array([1, 0], "u1"), jnp.ones(2, "bfloat16"))
    assert y_true.dtype == y_pred.dtype == jnp.bfloat16


@pytest.mark.parametrize(("y_true", "y_pred"), [((8, 1), (8, 3)), ((8,), (8, 3)), ((8,), (4,)), ((2, 1, 3), (2, 3))])
def test_nothing_is_broadcast(y_true, y_pred):
    with pytest.raises(ModelError, match="it: targets must have the shape") as caught:
        matched("it", jnp.ones(y_true), jnp.ones(y_pred))
    assert str(y_true) in caught.value.given and str(y_pred) in caught.value.given


def test_one_prediction_is_compared_with_each_target_with_a_warning():
    with pytest.warns(UserWarning, match=r"one prediction is compared with each of 3 targets"):
        y_true, y_pred = matched("it", jnp.ones((8, 3)), 2 * jnp.ones((8, 1)))
    assert y_true.shape == y_pred.shape == (8, 3)
