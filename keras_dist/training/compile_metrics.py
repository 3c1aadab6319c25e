"""`ModelMetrics`: the metric objects of a compiled model, with their last values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from keras_dist._support.stateless_scope import current_scope
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError
from keras_dist.metrics import Mean, Metric
from keras_dist.training.accumulators import Accumulator, by_name
from keras_dist.training.objective import Objective
from keras_dist.variables import Variable


class CompileMetrics(Metric):
    """The metrics of `compile(metrics=..., weighted_metrics=...)` as one metric, as in Keras."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(name="compile_metrics")
        self.metrics = objective.all_metrics
        self.logged: dict[str, Metric] | None = None
        self._objective = objective

    @property
    def variables(self) -> list[Variable]:
        """The variables of the metrics, in their order."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: PyTree = None) -> None:
        """Update the metrics with targets, outputs and weights of the model."""
        found = self._objective.logs({}, (None, y_true, sample_weight), y_pred, recorded_mask(y_pred))
        self.logged = {name: one.metric for name, one in found.items()}
        for one in found.values():
            one.update()

    def reset_state(self) -> None:
        """Reset all metrics."""
        for metric in self.metrics:
            metric.reset_state()

    def result(self) -> dict[str, Any]:
        """Return the results by the names they are logged under."""
        if self.logged is None:  # the names depend on targets
            summary = "the metrics of `compile` have no result yet"
            given = "a model that was neither trained nor evaluated"
            raise ModelError(summary, given=given, fix="call fit or evaluate first")
        found: dict[str, Any] = {}
        for name, metric in self.logged.items():
            found |= by_name(name, metric.result())
        return found


class ModelMetrics:
    """The metric objects of a compiled model; `compiled` has the metrics of `compile`, None without any."""

    # The compiled steps carry the states of metrics; `hold` stores them on the device, and reading fetches them.

    def __init__(self, objective: Objective | None) -> None:
        self._means = {"loss": Mean("loss")}
        self.compiled = None if objective is None else CompileMetrics(objective)

    def note_losses(self, losses: Mapping[str, Any], x: PyTree) -> None:
        """Update the running mean of each loss, weighted by the number of rows."""
        rows = len(jax.tree.leaves(x)[0])
        for name, value in losses.items():
            self._means.setdefault(name, Mean(name)).update_state(value, rows)

    @property
    def all(self) -> list[Metric]:
        """The mean loss, the metrics of `compile` as one metric, and the mean loss of each output."""
        first, *others = self._means.values()
        return [first, *([] if self.compiled is None else [self.compiled]), *others]

    def hold(self, accumulators: Mapping[str, Accumulator], states: Mapping[str, PyTree]) -> None:
        """Load these states into the metrics; reset metrics without a state."""
        logged = {name: one.metric for name, one in accumulators.items() if one.metric is not None}
        means = {name: self._means.setdefault(name, Mean(name)) for name, one in accumulators.items() if one.is_mean}
        if self.compiled is not None:
            self.compiled.logged = logged
        for name, metric in (logged | means).items():
            metric.hold(states[name])
        held = {id(metric) for metric in (logged | means).values()}
        for metric in [*self._means.values(), *(self.compiled.metrics if self.compiled is not None else ())]:
            if id(metric) not in held:
                metric.reset_state()


def note_masks(outputs: PyTree, masks: PyTree) -> None:
    """Record the masks of outputs, for a loss in the same stateless function."""
    scope = current_scope()
    if scope is not None and jax.tree.leaves(masks):
        flat = jax.tree.leaves(masks, is_leaf=lambda mask: mask is None)
        scope.masks.extend(zip(jax.tree.leaves(outputs), flat, strict=True))


def recorded_mask(outputs: PyTree) -> PyTree:
    """Return the recorded masks of these outputs; None without any."""
    scope = current_scope()
    recorded = [] if scope is None else scope.masks
    masks = jax.tree.map(lambda one: next((mask for output, mask in recorded if output is one), None), outputs)
    return masks if jax.tree.leaves(masks) else None
