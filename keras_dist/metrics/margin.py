"""Margins of classifiers."""

from __future__ import annotations

from typing import Any

from keras_dist.losses.margin import categorical_hinge, hinge, squared_hinge
from keras_dist.metrics.reduction import MeanMetricWrapper


class Hinge(MeanMetricWrapper):
    """The mean of `max(1 - y_true * y_pred, 0)`; targets of 0 and 1 count as -1 and 1.

    Source: `keras.metrics.Hinge`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "hinge", dtype: Any = None) -> None:
        super().__init__(hinge, name, dtype)


class SquaredHinge(MeanMetricWrapper):
    """The mean of `max(1 - y_true * y_pred, 0)**2`; targets of 0 and 1 count as -1 and 1.

    Source: `keras.metrics.SquaredHinge`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "squared_hinge", dtype: Any = None) -> None:
        super().__init__(squared_hinge, name, dtype)


class CategoricalHinge(MeanMetricWrapper):
    """The mean of `max(1 + highest wrong score - score of the class, 0)` for one-hot targets.

    Source: `keras.metrics.CategoricalHinge`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "categorical_hinge", dtype: Any = None) -> None:
        super().__init__(categorical_hinge, name, dtype)
