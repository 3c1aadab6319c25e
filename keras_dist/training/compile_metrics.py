"""`ModelMetrics`: the metric objects of a compiled model, which tell what was measured last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_dist._types import PyTree
from keras_dist.errors import ModelError
from keras_dist.metrics import Mean, Metric
from keras_dist.training.accumulators import Accumulator, MetricAccumulator, by_name


class CompileMetrics(Metric):
    """What `compile(metrics=..., weighted_metrics=...)` chose, as one metric.

    Attributes:
        metrics: in the order of outputs.
        logged: the metrics by the names that they are logged under; None before the first targets.

    Source: `keras.src.trainers.compile_utils.CompileMetrics`.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__(name="compile_metrics")
        self.metrics = list(metrics)
        self.logged: dict[str, Metric] | None = None

    def reset_state(self) -> None:
        """Forget all batches."""
        for metric in self.metrics:
            metric.reset_state()

    def result(self) -> dict[str, Any]:
        """What each metric gives, by the name it is logged as.

        Raises:
            ModelError: the model has seen no targets yet, on which the names depend.
        """
        if self.logged is None:
            raise ModelError(
                "the metrics of `compile` have no result yet",
                given="a model that was neither trained nor evaluated",
                expected="names, which are known when the first targets have been seen",
                fix="call fit or evaluate first",
            )
        found: dict[str, Any] = {}
        for name, metric in self.logged.items():
            found |= by_name(name, metric.result())
        return found


class ModelMetrics:
    """The metric objects of a compiled model.

    While a model is trained or evaluated, the states of metrics travel through the compiled steps. Afterwards `hold`
    gives them to these objects as they are, on the device: they are fetched when somebody reads them.
    """

    def __init__(self, metrics: Sequence[Metric] | None) -> None:
        self._means = {"loss": Mean("loss")}
        self._compiled = None if metrics is None else CompileMetrics(metrics)

    @property
    def all(self) -> list[Metric]:
        """The mean of the loss, what `compile` chose as one metric, and the means of each output's loss."""
        first, *others = self._means.values()
        return [first, *([] if self._compiled is None else [self._compiled]), *others]

    def hold(self, accumulators: Mapping[str, Accumulator], states: Mapping[str, PyTree]) -> None:
        """Let the metrics tell what is in these states; those that are not among them tell of nothing."""
        logged = {
            name: accumulator.metric
            for name, accumulator in accumulators.items()
            if isinstance(accumulator, MetricAccumulator)
        }
        means = {name: self._means.setdefault(name, Mean(name)) for name in accumulators if name not in logged}
        if self._compiled is not None:
            self._compiled.logged = logged
        for name, metric in (logged | means).items():
            metric.hold(states[name])
        held = {id(metric) for metric in (logged | means).values()}
        for metric in [*self._means.values(), *(self._compiled.metrics if self._compiled is not None else ())]:
            if id(metric) not in held:
                metric.reset_state()
