"""`AUC`: the area under a curve of two rates over thresholds."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_int, check_option
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError
from keras_dist.metrics.confusion import MOST_THRESHOLDS, Counts, count, even_thresholds, selected, spread
from keras_dist.metrics.metric import Metric
from keras_dist.metrics.reduction import divide_no_nan


class AUC(Metric, direction="up"):
    """Area under the ROC, precision-recall or precision-recall-gain curve, as a sum over thresholds.

    Args:
        num_thresholds: number of points of the curve.
        curve: `"ROC"`, `"PR"` or `"PRGAIN"`.
        summation_method: the curve between points: `"interpolation"`, `"minoring"` or `"majoring"`.
        name, dtype, mesh: as in `Metric`.
        thresholds: thresholds, instead of evenly spaced ones; one below 0 and one above 1 are added.
        multi_label: whether predictions are (batch, labels), and the result is the mean over labels.
        num_labels: number of labels; by default as in the first batch.
        label_weights: a weight for each label in the mean over labels or, without `multi_label`, in the counts.
        from_logits: whether predictions are logits.

    Raises:
        ModelError: an argument is invalid.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: DTypeLike | None = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: ArrayLike | None = None,
        from_logits: bool = False,
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.curve = check_option("curve", curve, ("PRGAIN", "PR", "ROC"))
        methods = ("majoring", "minoring", "interpolation")
        self.summation_method = check_option("summation_method", summation_method, methods)
        if thresholds is None:
            self.thresholds = even_thresholds(
                check_int("num_thresholds", num_thresholds, 2, MOST_THRESHOLDS), epsilon()
            )
        else:
            self.thresholds = [-epsilon(), *sorted(thresholds), 1 + epsilon()]
        self.num_thresholds = len(self.thresholds)
        self.multi_label = multi_label
        self.num_labels = num_labels
        self.label_weights = None if label_weights is None else np.asarray(label_weights, self.dtype)
        self.from_logits = from_logits
        if num_labels and not multi_label:
            summary = "AUC: `num_labels` needs multi_label=True"
            fix = "leave num_labels out, or pass multi_label=True"
            raise ModelError(summary, given=f"num_labels={num_labels}, multi_label=False", fix=fix)
        if num_labels or not multi_label:
            self._build(num_labels)

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of targets 0 and 1 and of probabilities or logits (batch, ...), with weights that fit them."""
        y_true, y_pred = selected("AUC", y_true, y_pred)
        if self.multi_label and y_pred.ndim != 2:
            summary = "AUC: `multi_label` needs predictions of shape (batch, labels)"
            fix = "reshape predictions and targets, or leave multi_label out"
            raise ModelError(summary, given=f"predictions of shape {y_pred.shape}", fix=fix)
        if not self.variables:
            self._build(y_pred.shape[-1])
        if self.from_logits:
            y_pred = jax.nn.sigmoid(y_pred)
        if self.label_weights is not None and not self.multi_label:
            sample_weight = spread(1 if sample_weight is None else sample_weight, y_pred) * self.label_weights
        counts = count(y_true, y_pred, self.thresholds, sample_weight, multi_label=self.multi_label)
        for variable, values in zip(self.variables, counts, strict=True):
            variable.assign_add(values)

    def result(self) -> jax.Array:
        """Return the area so far; 0.0 without values."""
        if not self.variables:
            return jnp.zeros(())
        counts = Counts(*(jnp.asarray(variable.value) for variable in self.variables))
        if self.curve == "PR" and self.summation_method == "interpolation":
            areas = _interpolated_precision_recall(counts)
        else:
            x, y = _CURVES[self.curve](counts)
            areas = (x[:-1] - x[1:]) * _HEIGHTS[self.summation_method](y[:-1], y[1:])
        area = jnp.sum(areas, axis=0)
        if self.multi_label and self.label_weights is not None:
            return divide_no_nan(jnp.sum(area * self.label_weights), jnp.sum(self.label_weights))
        return jnp.mean(area)

    def _build(self, labels: int | None) -> None:
        shape = (self.num_thresholds, labels) if self.multi_label and labels else (self.num_thresholds,)
        for name in Counts._fields:
            setattr(self, name, self.add_variable(shape, name=name))


def _precision_recall_gain(counts: Counts) -> tuple[jax.Array, jax.Array]:
    """Recall gain `1 - odds * FN / TP` and precision gain `1 - odds * FP / TP`, where `odds = P / N`.

    Source: Flach and Kull, Precision-Recall-Gain Curves, NeurIPS 2015.
    """
    true, false_positives, true_negatives, false_negatives = counts
    odds = divide_no_nan(true + false_negatives, true_negatives + false_positives)
    recall = jnp.where(true == 0, 0.0, 1 - odds * divide_no_nan(false_negatives, true))
    precision = jnp.where(true == 0, 1.0, 1 - odds * divide_no_nan(false_positives, true))
    return jnp.maximum(recall, 0), precision


def _interpolated_precision_recall(counts: Counts) -> jax.Array:
    """Areas between thresholds, with true positives interpolated instead of precision.

    Source: Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves, ICML 2006.
    """
    true, positive = counts.true_positives, counts.true_positives + counts.false_positives
    gained = true[:-1] - true[1:]
    slope = divide_no_nan(gained, jnp.maximum(positive[:-1] - positive[1:], 0))
    intercept = true[1:] - slope * positive[1:]
    is_ratio = (positive[:-1] > 0) & (positive[1:] > 0)
    ratio = jnp.where(is_ratio, divide_no_nan(positive[:-1], jnp.maximum(positive[1:], 0)), 1.0)
    return divide_no_nan(slope * (gained + intercept * jnp.log(ratio)), true[1:] + counts.false_negatives[1:])


_CURVES: dict[str, Callable[[Counts], tuple[jax.Array, jax.Array]]] = {
    "ROC": lambda counts: (counts.rate("fall-out"), counts.rate("recall")),
    "PR": lambda counts: (counts.rate("recall"), counts.rate("precision")),
    "PRGAIN": _precision_recall_gain,
}
"""The x and y of each curve, at each threshold."""

_HEIGHTS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "interpolation": lambda left, right: (left + right) / 2,
    "minoring": jnp.minimum,
    "majoring": jnp.maximum,
}
"""The height between two points, for each summation method."""
