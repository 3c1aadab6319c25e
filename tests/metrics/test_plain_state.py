"""State in plain attributes, which compiled steps would not see, is found."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import metrics
from keras_dist.errors import ModelError
from keras_dist.training.accumulators import Observation, accumulator_of

Y = np.eye(3, dtype="f4")


class _Kept(metrics.Metric):
    """Metrics that keep something beside their variables."""

    kept: Any = None

    def __init__(self) -> None:
        super().__init__(name="kept_aside")
        self.total = self.add_variable((), name="total")

    def result(self) -> Any:
        return self.total

    def reset_state(self) -> None:
        super().reset_state()
        self.kept = type(self).kept


class Counter(_Kept):
    kept = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept += 1


class Summing(_Kept):
    kept = 0.0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept = self.kept + jnp.sum(y_pred)


class Collecting(_Kept):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept = self.kept or []
        self.kept.append(y_pred)


class ByName(_Kept):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept = self.kept or {"batches": [0]}
        self.kept["batches"][0] += 1


class NotingShapes(_Kept):
    """What settles with the first batch is no state."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.kept is None:
            self.counts = self.add_variable(y_pred.shape[-1:], name="counts")
        self.kept = {"classes": y_pred.shape[-1], "grid": np.arange(3), "seen": (1, [2.0]), "names": {"a"}}
        self.total.assign_add(jnp.sum(y_pred))


def traced(metric: metrics.Metric) -> None:
    jax.eval_shape(lambda y: (accumulator_of("m", Observation(metric, y, y)), None)[1], Y)


@pytest.mark.parametrize("metric", [Counter, Summing, Collecting, ByName], ids=lambda cls: cls.__name__)
def test_what_changes_with_each_batch_is_refused(metric):
    with pytest.raises(ModelError, match="'kept_aside' keeps state in the plain attribute `kept`") as caught:
        traced(metric())
    assert "self.kept = self.add_variable((), name='kept')" in caught.value.fix
    assert metric.__name__ in caught.value.given


def test_what_settles_with_the_first_batch_is_not():
    metric = NotingShapes()
    traced(metric)
    assert [variable.name for variable in metric.variables] == ["total", "counts"]


def test_outside_of_compiled_steps_a_metric_may_keep_what_it_likes():
    metric = Counter()
    metric.update_state(Y, Y)
    metric.update_state(Y, Y)
    assert metric.kept == 2
