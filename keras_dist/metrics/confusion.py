"""Metrics of true and false positives and negatives at thresholds: counts, precision, recall, best rates."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_fraction, check_int
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError, shorten
from keras_dist.losses.targets import align_ranks, as_arrays
from keras_dist.metrics.metric import Metric
from keras_dist.metrics.reduction import divide_no_nan

MOST_THRESHOLDS = 2**24  # a list of Python floats of 512 MiB
_NEVER = -1e10  # a score below every threshold, or a threshold below every score


RATES = {
    "precision": ("true_positives", "false_positives"),
    "recall": ("true_positives", "false_negatives"),
    "specificity": ("true_negatives", "false_positives"),
    "fall-out": ("false_positives", "true_negatives"),
}
"""The counts `a` and `b` of each rate `a / (a + b)`."""


class Counts(NamedTuple):
    """Sums of weights, each (thresholds,) or (thresholds, labels)."""

    true_positives: jax.Array
    false_positives: jax.Array
    true_negatives: jax.Array
    false_negatives: jax.Array

    def rate(self, name: str) -> jax.Array:
        """`a / (a + b)` of the counts that `RATES` names; 0 where both are 0."""
        part, others = (getattr(self, count) for count in RATES[name])
        return divide_no_nan(part, part + others)


class ConfusionMetric(Metric):
    """A metric whose variables are some of the four counts at thresholds."""

    def __init__(
        self,
        thresholds: Sequence[float],
        counts: Sequence[str],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
        *,
        top_k: int | None = None,
        class_id: int | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.thresholds = list(thresholds)
        self.top_k = top_k
        self.class_id = class_id
        for count in counts:
            setattr(self, count, self.add_variable((len(self.thresholds),), name=count))

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of targets 0 and 1 and of scores (batch, ...), with weights that fit them."""
        targets, scores = selected(type(self).__name__, y_true, y_pred, self.top_k, self.class_id)
        counts = count(targets, scores, self.thresholds, sample_weight)
        for variable in self.variables:
            variable.assign_add(getattr(counts, variable.name))

    def _scalar_of_one(self, values: Any) -> jax.Array:
        return values[0] if len(self.thresholds) == 1 else jnp.asarray(values)


class _Count(ConfusionMetric):
    _count: str

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(parse_thresholds(thresholds), [self._count], name, dtype, mesh)
        self.init_thresholds = thresholds

    def result(self) -> jax.Array:
        """Return the sum of weights so far: a scalar, or one for each threshold."""
        return self._scalar_of_one(self.variables[0].value)


class TruePositives(_Count, direction="up"):
    """Number of examples with `y_true == 1` and `y_pred > threshold`, or the sum of their weights.

    Args:
        thresholds: a number from 0 to 1 or several; 0.5 by default, 0 for logits.
        name, dtype, mesh: as in `Metric`.
    """

    _count = "true_positives"


class FalsePositives(_Count, direction="down"):
    """Number of examples with `y_true == 0` and `y_pred > threshold`. Arguments as in `TruePositives`."""

    _count = "false_positives"


class TrueNegatives(_Count, direction="up"):
    """Number of examples with `y_true == 0` and `y_pred <= threshold`. Arguments as in `TruePositives`."""

    _count = "true_negatives"


class FalseNegatives(_Count, direction="down"):
    """Number of examples with `y_true == 1` and `y_pred <= threshold`. Arguments as in `TruePositives`."""

    _count = "false_negatives"


class _Rate(ConfusionMetric, direction="up"):
    _rate: str

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        parsed = parse_thresholds(thresholds, 0.5 if top_k is None else _NEVER)
        super().__init__(parsed, RATES[self._rate], name, dtype, mesh, top_k=top_k, class_id=class_id)
        self.init_thresholds = thresholds

    def result(self) -> jax.Array:
        """Return the rate so far: a scalar, or one for each threshold."""
        part, others = (variable.value for variable in self.variables)
        return self._scalar_of_one(divide_no_nan(part, part + others))


class Precision(_Rate):
    """Precision, `TP / (TP + FP)`.

    Args:
        thresholds: a number from 0 to 1 or several; 0.5 by default, none with `top_k`. 0 for logits.
        top_k: only the `top_k` largest scores of a row count as positive.
        class_id: only this class counts.
        name, dtype, mesh: as in `Metric`.
    """

    _rate = "precision"


class Recall(_Rate):
    """Recall, `TP / (TP + FN)`. Arguments as in `Precision`."""

    _rate = "recall"


class _AtOperatingPoint(ConfusionMetric, direction="up"):
    """The largest value of the rate `_best` at the thresholds where the rate `_where` is at least `value`; else 0."""

    _best: str
    _where: str

    def __init__(
        self,
        argument: str,
        value: float,
        num_thresholds: int,
        class_id: int | None,
        name: str | None,
        dtype: DTypeLike | None,
        mesh: object,
    ) -> None:
        self.value = check_fraction(argument, value)
        setattr(self, argument, self.value)
        self.num_thresholds = check_int("num_thresholds", num_thresholds, 1, MOST_THRESHOLDS)
        thresholds = [0.5] if num_thresholds == 1 else even_thresholds(num_thresholds)
        super().__init__(thresholds, Counts._fields, name, dtype, mesh, class_id=class_id)

    def result(self) -> jax.Array:
        """Return the best value so far."""
        counts = Counts(*(variable.value for variable in self.variables))
        return jnp.max(jnp.where(counts.rate(self._where) >= self.value, counts.rate(self._best), 0), initial=0)


class SensitivityAtSpecificity(_AtOperatingPoint):
    """Best sensitivity `TP / (TP + FN)` where specificity `TN / (TN + FP)` is at least `specificity`.

    Args:
        specificity: from 0 to 1.
        num_thresholds: number of thresholds to try.
        class_id: only this class counts.
        name, dtype, mesh: as in `Metric`.

    Raises:
        ModelError: an argument is out of range.
    """

    specificity: float
    _best, _where = "recall", "specificity"

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__("specificity", specificity, num_thresholds, class_id, name, dtype, mesh)


class SpecificityAtSensitivity(_AtOperatingPoint):
    """Best specificity `TN / (TN + FP)` where sensitivity `TP / (TP + FN)` is at least `sensitivity`.

    Other arguments and errors as in `SensitivityAtSpecificity`.
    """

    sensitivity: float
    _best, _where = "specificity", "recall"

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__("sensitivity", sensitivity, num_thresholds, class_id, name, dtype, mesh)


class PrecisionAtRecall(_AtOperatingPoint):
    """Best precision `TP / (TP + FP)` where recall `TP / (TP + FN)` is at least `recall`.

    Other arguments and errors as in `SensitivityAtSpecificity`.
    """

    recall: float
    _best, _where = "precision", "recall"

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__("recall", recall, num_thresholds, class_id, name, dtype, mesh)


class RecallAtPrecision(_AtOperatingPoint):
    """Best recall `TP / (TP + FN)` where precision `TP / (TP + FP)` is at least `precision`.

    Other arguments and errors as in `SensitivityAtSpecificity`.
    """

    precision: float
    _best, _where = "recall", "precision"

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__("precision", precision, num_thresholds, class_id, name, dtype, mesh)


def parse_thresholds(thresholds: float | Sequence[float] | None, default: float = 0.5) -> list[float]:
    """Return the thresholds as a list."""
    if thresholds is None:
        return [default]
    found: list[Any] = list(thresholds) if isinstance(thresholds, Sequence | np.ndarray) else [thresholds]
    for threshold in found:
        if threshold is None or not 0 <= threshold <= 1:
            summary = "`thresholds` must be numbers from 0 to 1"
            fix = "for logits pass 0, which is a probability of one half"
            raise ModelError(summary, given=f"thresholds={shorten(thresholds)}", fix=fix)
    return found


def count(
    y_true: jax.Array,
    y_pred: jax.Array,
    thresholds: Sequence[float],
    sample_weight: ArrayLike | None = None,
    *,
    multi_label: bool = False,
) -> Counts:
    """Return the four counts at increasing thresholds; with `multi_label` for each label of (batch, labels).

    For evenly spaced thresholds each score is counted once, in its bucket.
    """
    weight = jnp.ones_like(y_pred) if sample_weight is None else spread(sample_weight, y_pred)
    columns = y_pred.shape[-1] if multi_label else 1
    is_true, scores, weight = (array.reshape(-1, columns) for array in (y_true != 0, y_pred, weight))
    true, false = jnp.where(is_true, weight, 0), jnp.where(is_true, 0, weight)
    if _is_even(thresholds):
        bucket = _buckets(scores, thresholds)
        true_above, false_above = (_sum_above(weights, bucket, len(thresholds)) for weights in (true, false))
    else:
        above = scores > jnp.asarray(thresholds, scores.dtype)[:, None, None]
        true_above, false_above = (jnp.sum(jnp.where(above, weights, 0), axis=1) for weights in (true, false))
    counts = Counts(true_above, false_above, jnp.sum(false, 0) - false_above, jnp.sum(true, 0) - true_above)
    return counts if multi_label else Counts(*(values[:, 0] for values in counts))


def spread(sample_weight: ArrayLike, values: jax.Array) -> jax.Array:
    """Broadcast weights to the shape of `values`; their shape is a prefix of it or broadcasts to it."""
    weight = jnp.asarray(sample_weight, values.dtype)
    if weight.ndim == values.ndim + 1 and weight.shape[-1] == 1:
        weight = jnp.squeeze(weight, -1)
    weight = weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim))
    if weight.ndim != values.ndim or any(n not in (1, m) for n, m in zip(weight.shape, values.shape, strict=True)):
        given = f"sample_weight of shape {jnp.shape(sample_weight)}, predictions of shape {values.shape}"
        fix = "reshape the weights: their dims must be the first of the predictions"
        raise ModelError("`sample_weight` does not fit the predictions", given=given, fix=fix)
    return jnp.broadcast_to(weight, values.shape)


def selected(
    name: str, y_true: ArrayLike, y_pred: ArrayLike, top_k: int | None = None, class_id: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the targets and scores of `class_id`; scores outside of the `top_k` are set below all thresholds."""
    y_true, y_pred = align_ranks(*as_arrays(name, y_true, y_pred))
    if y_true.shape != y_pred.shape:
        given = f"y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}"
        fix = "turn class indices into one-hot rows: jax.nn.one_hot(y_true, classes)"
        raise ModelError(f"{name}: targets do not have the shape of the predictions", given=given, fix=fix)
    y_pred = y_pred.astype(jnp.float32)
    if top_k is not None:
        _check_classes(name, top_k, y_pred)
        best = jax.lax.top_k(y_pred, top_k)[1]
        is_best = jnp.any(best[..., None] == jnp.arange(y_pred.shape[-1]), axis=-2)
        y_pred = jnp.where(is_best, y_pred, _NEVER)
    if class_id is not None:
        if y_pred.ndim == 1:
            summary = f"{name}: `class_id` needs predictions with classes"
            given = f"class_id={class_id}, predictions of shape {y_pred.shape}"
            raise ModelError(summary, given=given, fix="leave class_id out")
        y_true, y_pred = y_true[..., class_id, None], y_pred[..., class_id, None]
    return y_true, y_pred


def _check_classes(name: str, top_k: int, y_pred: jax.Array) -> None:
    if y_pred.ndim == 0 or top_k > y_pred.shape[-1]:
        summary = f"{name}: `top_k` is larger than the number of classes"
        fix = "choose a smaller top_k, or leave it out for a threshold"
        raise ModelError(summary, given=f"top_k={top_k}, predictions of shape {y_pred.shape}", fix=fix)


def _is_even(thresholds: Sequence[float]) -> bool:
    return len(thresholds) > 2 and np.allclose(thresholds, np.linspace(0, 1, len(thresholds)), atol=epsilon())


def _buckets(scores: jax.Array, thresholds: Sequence[float]) -> jax.Array:
    """Return the index of the last threshold below each score, or -1."""
    bucket = jnp.ceil(jnp.clip(scores, 0, 1) * (len(thresholds) - 1)) - 1
    starts_below_zero = thresholds[0] < 0
    return (jnp.maximum(bucket, 0) if starts_below_zero else bucket).astype(jnp.int32)


def _sum_above(weights: jax.Array, bucket: jax.Array, buckets: int) -> jax.Array:
    """Return the sums of weights in each bucket and all buckets above, (buckets, columns)."""
    columns = jnp.arange(weights.shape[-1])
    # `at` would count -1 from the end
    inside = jnp.where(bucket < 0, buckets, bucket)
    sums = jnp.zeros((buckets, weights.shape[-1]), weights.dtype).at[inside, columns].add(weights, mode="drop")
    return jnp.flip(jnp.cumsum(jnp.flip(sums, 0), 0), 0)


def even_thresholds(num_thresholds: int, margin: float = 0.0) -> list[float]:
    """Return thresholds from `-margin` to `1 + margin`, evenly spaced between 0 and 1."""
    inner = [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)]
    return [-margin, *inner, 1 + margin]
