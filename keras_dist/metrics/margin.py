"""Mean hinge losses as metrics."""

from __future__ import annotations

from keras_dist.losses.margin import categorical_hinge, hinge, squared_hinge
from keras_dist.metrics.reduction import FunctionMetric


class Hinge(FunctionMetric, function=hinge, direction="down"):
    """Mean of `max(1 - y_true * y_pred, 0)`; targets of 0 and 1 count as -1 and 1. Arguments as in `Metric`."""


class SquaredHinge(FunctionMetric, function=squared_hinge, direction="down"):
    """Mean of `max(1 - y_true * y_pred, 0)**2`; targets of 0 and 1 count as -1 and 1. Arguments as in `Metric`."""


class CategoricalHinge(FunctionMetric, function=categorical_hinge, direction="down"):
    """Mean of `max(1 + max((1 - y_true) * y_pred) - sum(y_true * y_pred), 0)` for one-hot targets.

    Arguments as in `Metric`.
    """
