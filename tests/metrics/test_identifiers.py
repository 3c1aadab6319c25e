"""Metrics by name and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import errors, losses, metrics
from keras_dist.metrics.identifiers import as_metric

SCORES = jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize(
    ("y_true", "y_pred", "expected"),
    [
        ([1, 0, 0], SCORES, 2 / 3),
        ([[1], [0], [0]], SCORES, 2 / 3),
        ([[0, 1], [1, 0], [1, 0]], SCORES, 2 / 3),
        ([1, 0, 1], jnp.array([0.6, 0.6, 0.5]), 1 / 3),
        ([1, 0, 1], jnp.array([[0.6], [0.6], [0.5]]), 1 / 3),
        ([[1], [0], [1]], jnp.array([[0.6], [0.6], [0.5]]), 1 / 3),
        ([[1, 0, 0]], SCORES[None], 2 / 3),
    ],
    ids=["sparse", "sparse column", "one-hot", "binary", "binary column", "binary columns", "sequence"],
)
@pytest.mark.parametrize("name", ["accuracy", "acc", "Accuracy"])
def test_accuracy_is_sparse_categorical_or_binary_by_the_shapes(name, y_true, y_pred, expected):
    metric = as_metric(name)
    assert metric.name == name
    assert float(metric(jnp.asarray(y_true), y_pred)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["crossentropy", "ce"])
@pytest.mark.parametrize(
    ("y_true", "y_pred", "like"),
    [
        ([1, 0, 0], SCORES, "sparse_categorical_crossentropy"),
        ([[0, 1], [1, 0], [1, 0]], SCORES, "categorical_crossentropy"),
        ([[1], [0], [1]], [[0.6], [0.6], [0.5]], "binary_crossentropy"),
    ],
)
def test_crossentropy_is_chosen_likewise(name, y_true, y_pred, like):
    found, expected = (as_metric(n)(np.asarray(y_true), np.asarray(y_pred, "f4")) for n in (name, like))
    assert as_metric(name).name == name
    assert float(found) == pytest.approx(float(expected))


@pytest.mark.parametrize("name", ["mse", "MSE", "AUC", "auc", "io_u", "kl_divergence", "BinaryAccuracy", "bce"])
def test_a_name_is_kept_as_it_was_written(name):
    if name == "io_u":
        with pytest.raises(errors.ConfigError, match="needs arguments"):
            as_metric(name)
    else:
        assert as_metric(name).name == name


def test_a_callable_goes_by_its_own_name():
    def largest_error(y_true, y_pred):
        return abs(y_true - y_pred)

    assert as_metric(largest_error).name == "largest_error"
    metric = metrics.MeanMetricWrapper(largest_error, "other")
    assert as_metric(metric) is metric
    assert as_metric(losses.MeanSquaredError()).name == "mean_squared_error"
    assert as_metric({"class_name": "AUC", "config": {"curve": "PR"}}).get_config()["curve"] == "PR"


def test_a_mean_of_the_batch_counts_as_often_as_the_batch_has_rows():
    metric = as_metric(lambda y_true, y_pred: jnp.mean(y_pred))
    metric.update_state(None, jnp.array([1.0, 1.0, 1.0]))
    metric.update_state(None, jnp.array([5.0]))
    assert float(metric.result()) == 2.0
    with pytest.raises(errors.ModelError, match="`sample_weight` does not fit"):
        metric.update_state(None, jnp.array([5.0]), jnp.array([1.0]))


def test_a_typo_names_the_nearest():
    with pytest.raises(errors.UnknownNameError, match=r"'acuracy' \(did you mean 'accuracy'\?\)") as caught:
        as_metric("acuracy")
    assert "a Metric" in caught.value.expected and caught.value.fix


@pytest.mark.parametrize("given", [3, None, ["accuracy"], int, lambda y_true: y_true])
def test_what_is_no_metric_is_refused(given):
    with pytest.raises(errors.ModelError, match="`metric` must be a name, a config, a Metric"):
        as_metric(given)


def test_several_at_once():
    assert [metric.name for metric in metrics.get_all(["acc", "mse"])] == ["acc", "mse"]
    assert [metric.name for metric in metrics.get_all("acc")] == ["acc"]
    assert metrics.get_all(None) == []
    with pytest.raises(errors.ModelError, match="logged as 'loss'"):
        metrics.get_all([metrics.Mean("loss")])
