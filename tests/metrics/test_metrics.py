"""Metrics by name and by hand, and means that stay open until they are read."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import errors, metrics

SCORES = jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize(
    ("y_true", "y_pred", "expected"),
    [
        ([1, 0, 0], SCORES, [1, 1, 0]),
        ([[1], [0], [0]], SCORES, [1, 1, 0]),
        ([[0, 1], [1, 0], [1, 0]], SCORES, [1, 1, 0]),
        ([1, 0, 1], jnp.array([0.6, 0.6, 0.5]), [1, 0, 0]),
        ([1, 0, 1], jnp.array([[0.6], [0.6], [0.5]]), [1, 0, 0]),
        ([[1], [0], [1]], jnp.array([[0.6], [0.6], [0.5]]), [[1], [0], [0]]),
        ([[1, 0, 0]], SCORES[None], [[1, 1, 0]]),
    ],
    ids=["sparse", "sparse column", "one-hot", "binary", "binary column", "binary columns", "sequence"],
)
def test_accuracy_is_sparse_categorical_or_binary_by_the_shapes(y_true, y_pred, expected):
    found = metrics.get("accuracy").fn(jnp.asarray(y_true), y_pred)
    np.testing.assert_array_equal(found, expected)


def test_mse_is_the_losss():
    metric = metrics.get("mse")
    assert metric.name == "mse"
    np.testing.assert_allclose(metric.fn(jnp.ones((2, 3)), jnp.zeros((2, 3))), [1, 1])


def test_a_callable_goes_by_its_own_name():
    def largest_error(y_true, y_pred):
        return abs(y_true - y_pred)

    assert metrics.get(largest_error).name == "largest_error"
    assert metrics.get(metrics.Metric("other", largest_error)).name == "other"


def test_a_typo_names_the_nearest():
    with pytest.raises(errors.UnknownNameError, match=r"'acuracy' \(did you mean 'accuracy'\?\)") as caught:
        metrics.get("acuracy")
    assert "mse" in caught.value.expected and caught.value.fix


@pytest.mark.parametrize("given", [3, None, ["accuracy"]])
def test_what_is_no_metric_is_refused(given):
    with pytest.raises(errors.ModelError, match="neither a name nor a callable"):
        metrics.get(given)


def test_an_open_mean_weighs_every_value_alike():
    mean = metrics.Mean.zero() + metrics.Mean.of(jnp.array([1.0, 2.0, 3.0])) + metrics.Mean.of(jnp.array([10.0]))
    assert mean.total / mean.weight == 4.0
    mean = metrics.Mean.zero() + metrics.Mean.of(2.0, 3) + metrics.Mean.of(6.0, 1)
    assert mean.total / mean.weight == 3.0


def test_an_open_mean_of_booleans_and_low_precision_is_summed_in_float32():
    mean = metrics.Mean.of(jnp.ones(4096, jnp.bfloat16) * 1.0)
    assert mean.total.dtype == jnp.float32 and mean.total == 4096
    assert metrics.Mean.of(jnp.array([True, False])).total == 1.0
