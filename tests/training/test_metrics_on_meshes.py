"""Metrics of fit and evaluate: over uneven batches what they are over all rows at once, on every mesh."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import metrics
from keras_dist._support.stateless_scope import StatelessScope
from tests import layouts
from tests.networks import blobs
from tests.soak import LARGE, repeated

MESHES = ["data=2,model=4", *["one device", "data=8,model=1"] * LARGE]
ROWS = 43
_, Y = blobs(ROWS)
ONE_HOT = np.eye(4, dtype="f4")[Y]
P = np.random.default_rng(2).dirichlet(np.ones(4), ROWS).astype("f4")
WEIGHT = np.random.default_rng(1).uniform(0, 2, ROWS).astype("f4")


class Echo(nnx.Module):
    """Its inputs are its predictions: the same bits on every mesh, so that no score falls into another bucket."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.one = nnx.Param(jnp.ones(()))

    def __call__(self, x: Any) -> Any:
        return x * self.one[...]


class SumOfRows(metrics.Sum):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(jnp.sum(y_pred, -1), sample_weight)


class Range(metrics.Metric):
    """A user's own, of two values, made when the shapes are known."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        if not self.variables:
            self.high, self.low = (self.add_variable((), "zeros", name=name) for name in ("high", "low"))
        self.high.assign(jnp.maximum(self.high.value, y_pred.max()))
        self.low.assign(jnp.minimum(self.low.value, -y_pred.max()))

    def result(self):
        return {"high": self.high.value, "low": self.low}


def made() -> list[metrics.Metric]:
    """One of each kind of state."""
    return [
        metrics.CategoricalAccuracy(),
        metrics.AUC(num_thresholds=20),
        metrics.Precision(thresholds=[0.2, 0.5]),
        metrics.F1Score(threshold=0.3, name="f1"),
        metrics.R2Score(num_regressors=2),
        metrics.OneHotMeanIoU(4),
        metrics.PearsonCorrelation(),
        SumOfRows("sum_of_rows"),
        Range(),
    ]


def compiled(name: str) -> kd.Model:
    model = layouts.model_on(name, Echo, {})
    model.compile("sgd", "categorical_crossentropy", metrics=made())
    return model


@functools.cache
def whole(rows: int) -> dict[str, Any]:
    """Every metric over these rows at once."""
    updated = made()

    @jax.jit
    def update(y_true: Any, y_pred: Any) -> Any:
        with StatelessScope():
            for metric in updated:
                metric.update_state(y_true, y_pred)
            return [[variable.value for variable in metric.variables] for metric in updated]

    found: dict[str, Any] = {}
    for metric, values in zip(updated, update(ONE_HOT[:rows], P[:rows]), strict=True):
        metric.hold(values)
        result = metric.result()
        found |= result if isinstance(result, dict) else {metric.name: result}
    return {name: np.asarray(value) for name, value in found.items()}


def close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


@repeated
@pytest.mark.parametrize("name", MESHES)
def test_metrics_of_fit_and_evaluate_are_those_of_all_rows(name):
    model = compiled(name)
    found = model.evaluate(P, ONE_HOT, batch_size=16, verbose=0, return_dict=True)  # the last batch has 11 rows
    close(found, whole(ROWS))
    assert list(found)[:2] == ["loss", "categorical_accuracy"]
    assert list(found)[-3:] == ["sum_of_rows", "high", "low"]
    assert all(type(value) is float for key, value in found.items() if key not in ("f1", "precision"))
    assert found["f1"].shape == (4,) and found["precision"].shape == (2,)
    model.optimizer.learning_rate = 0.0
    history = model.fit(P, ONE_HOT, batch_size=16, epochs=2, validation_data=(P[:11], ONE_HOT[:11]), verbose=0).history
    for epoch in range(2):
        close({key: values[epoch] for key, values in history.items()}, whole(ROWS))
    close({key: values[1] for key, values in history.items()}, {f"val_{k}": v for k, v in whole(11).items()})
    close(model.test_on_batch(P[:11], ONE_HOT[:11], return_dict=True), whole(11))


@repeated
@pytest.mark.parametrize("name", MESHES)
def test_weighted_metrics_see_weights_and_others_do_not(name):
    model = layouts.model_on(name, Echo, {})
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mae", metrics.Precision()])
    found = model.evaluate(P, ONE_HOT, batch_size=16, sample_weight=WEIGHT, verbose=0, return_dict=True)
    errors = np.abs(ONE_HOT - P).mean(-1)
    assert found["mae"] == pytest.approx(errors.mean(), rel=1e-5)
    assert found["weighted_mae"] == pytest.approx(np.average(errors, weights=WEIGHT), rel=1e-5)
    weights = WEIGHT[:, None] * (P > 0.5)
    assert found["precision"] == pytest.approx(np.sum(weights * ONE_HOT) / np.sum(weights), rel=1e-5)


def test_one_metric_may_serve_two_models_and_tells_of_the_last_run():
    mean = metrics.MeanAbsoluteError()
    for rows in (16, 11):
        model = kd.Model.from_nnx(Echo)
        model.compile("sgd", "mse", metrics=[mean])
        found = model.evaluate(P[:rows], ONE_HOT[:rows], verbose=0)[1]
        assert found == pytest.approx(np.abs(P[:rows] - ONE_HOT[:rows]).mean(), rel=1e-5)
        assert float(mean.result()) == pytest.approx(found)
