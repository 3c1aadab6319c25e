"""The best one rate can be where another is high enough: sensitivity at specificity and the like."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from keras_dist._arguments import check_fraction, check_int
from keras_dist.metrics.confusion import ConfusionMetric, Counts, even_thresholds
from keras_dist.metrics.reduction import divide_no_nan


class _AtOperatingPoint(ConfusionMetric):
    """The largest value of one rate at the thresholds where another is at least `value`; 0 where it never is."""

    _direction = "up"

    def __init__(self, value: float, num_thresholds: int, class_id: int | None, name: str | None, dtype: Any) -> None:
        num_thresholds = check_int("num_thresholds", num_thresholds, 1)
        thresholds = [0.5] if num_thresholds == 1 else even_thresholds(num_thresholds)
        super().__init__(thresholds, Counts._fields, name, dtype, class_id=class_id)
        self.value = value
        self.num_thresholds = num_thresholds

    def _best(self, rate: Any, where: Any) -> Any:
        return jnp.max(jnp.where(where >= self.value, rate, 0), initial=0)

    def _counts(self) -> Counts:
        return Counts(*(variable.value for variable in self.variables))


class SensitivityAtSpecificity(_AtOperatingPoint):
    """The best sensitivity `tp / (tp + fn)` where specificity `tn / (tn + fp)` is high enough.

    Args:
        specificity: the least specificity, from 0 to 1.
        num_thresholds: how many thresholds are tried.
        class_id: only this class counts.
        name: what it is logged as.
        dtype: of the counts.

    Raises:
        ModelError: an argument is out of range.

    Source: `keras.metrics.SensitivityAtSpecificity`.
    """

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(check_fraction("specificity", specificity), num_thresholds, class_id, name, dtype)

    def result(self) -> Any:
        """The sensitivity so far."""
        counts = self._counts()
        return self._best(_sensitivity(counts), where=_specificity(counts))


class SpecificityAtSensitivity(_AtOperatingPoint):
    """The best specificity `tn / (tn + fp)` where sensitivity `tp / (tp + fn)` is high enough.

    Args:
        sensitivity: the least sensitivity, from 0 to 1.
        num_thresholds: how many thresholds are tried.
        class_id: only this class counts.
        name: what it is logged as.
        dtype: of the counts.

    Raises:
        ModelError: an argument is out of range.

    Source: `keras.metrics.SpecificityAtSensitivity`.
    """

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(check_fraction("sensitivity", sensitivity), num_thresholds, class_id, name, dtype)

    def result(self) -> Any:
        """The specificity so far."""
        counts = self._counts()
        return self._best(_specificity(counts), where=_sensitivity(counts))


class PrecisionAtRecall(_AtOperatingPoint):
    """The best precision `tp / (tp + fp)` where recall `tp / (tp + fn)` is high enough.

    Args:
        recall: the least recall, from 0 to 1.
        num_thresholds: how many thresholds are tried.
        class_id: only this class counts.
        name: what it is logged as.
        dtype: of the counts.

    Raises:
        ModelError: an argument is out of range.

    Source: `keras.metrics.PrecisionAtRecall`.
    """

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(check_fraction("recall", recall), num_thresholds, class_id, name, dtype)

    def result(self) -> Any:
        """The precision so far."""
        counts = self._counts()
        return self._best(_precision(counts), where=_sensitivity(counts))


class RecallAtPrecision(_AtOperatingPoint):
    """The best recall `tp / (tp + fn)` where precision `tp / (tp + fp)` is high enough.

    Args:
        precision: the least precision, from 0 to 1.
        num_thresholds: how many thresholds are tried.
        class_id: only this class counts.
        name: what it is logged as.
        dtype: of the counts.

    Raises:
        ModelError: an argument is out of range.

    Source: `keras.metrics.RecallAtPrecision`.
    """

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(check_fraction("precision", precision), num_thresholds, class_id, name, dtype)

    def result(self) -> Any:
        """The recall so far."""
        counts = self._counts()
        return self._best(_sensitivity(counts), where=_precision(counts))


def _sensitivity(counts: Counts) -> Any:
    return divide_no_nan(counts.true_positives, counts.true_positives + counts.false_negatives)


def _specificity(counts: Counts) -> Any:
    return divide_no_nan(counts.true_negatives, counts.true_negatives + counts.false_positives)


def _precision(counts: Counts) -> Any:
    return divide_no_nan(counts.true_positives, counts.true_positives + counts.false_positives)
