"""Metrics at an operating point: the best of one rate where another is high enough."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_fraction, check_int
from keras_dist._types import DTypeLike
from keras_dist.metrics.confusion import ConfusionMetric, Counts, even_thresholds


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
        self.num_thresholds = check_int("num_thresholds", num_thresholds, 1)
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
        num_thresholds: how many thresholds are tried.
        class_id: only this class counts.
        name, dtype, mesh: as of `Metric`.

    Raises:
        ModelError: an argument is out of range.

    Source: `keras.metrics.SensitivityAtSpecificity`.
    """

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

    Other arguments and errors: as of `SensitivityAtSpecificity`.

    Source: `keras.metrics.SpecificityAtSensitivity`.
    """

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

    Other arguments and errors: as of `SensitivityAtSpecificity`.

    Source: `keras.metrics.PrecisionAtRecall`.
    """

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

    Other arguments and errors: as of `SensitivityAtSpecificity`.

    Source: `keras.metrics.RecallAtPrecision`.
    """

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
