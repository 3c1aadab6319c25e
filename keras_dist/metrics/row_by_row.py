"""Which metrics count each row by its weight, and one of weight 0 not at all."""

from __future__ import annotations

from typing import Any

from keras_dist import losses
from keras_dist.metrics import (
    accuracy,
    auc,
    confusion,
    correlation,
    f_score,
    margin,
    operating_point,
    perplexity,
    probabilistic,
    reduction,
    regression,
)
from keras_dist.metrics.metric import Metric

_ROW_BY_ROW: frozenset[type[Metric]] = frozenset(
    (
        accuracy.Accuracy,
        accuracy.BinaryAccuracy,
        accuracy.CategoricalAccuracy,
        accuracy.SparseCategoricalAccuracy,
        accuracy.SparseTopKCategoricalAccuracy,
        accuracy.TopKCategoricalAccuracy,
        auc.AUC,
        confusion.FalseNegatives,
        confusion.FalsePositives,
        confusion.Precision,
        confusion.Recall,
        confusion.TrueNegatives,
        confusion.TruePositives,
        correlation.ConcordanceCorrelation,
        correlation.PearsonCorrelation,
        f_score.F1Score,
        f_score.FBetaScore,
        margin.CategoricalHinge,
        margin.Hinge,
        margin.SquaredHinge,
        operating_point.PrecisionAtRecall,
        operating_point.RecallAtPrecision,
        operating_point.SensitivityAtSpecificity,
        operating_point.SpecificityAtSensitivity,
        perplexity.Perplexity,
        probabilistic.BinaryCrossentropy,
        probabilistic.CategoricalCrossentropy,
        probabilistic.KLDivergence,
        probabilistic.Poisson,
        probabilistic.SparseCategoricalCrossentropy,
        reduction.MeanMetricWrapper,
        regression.CosineSimilarity,
        regression.LogCoshError,
        regression.MeanAbsoluteError,
        regression.MeanAbsolutePercentageError,
        regression.MeanSquaredError,
        regression.MeanSquaredLogarithmicError,
        regression.RootMeanSquaredError,
    )
)

_FUNCTIONS = (
    accuracy.accuracy_by_shapes,
    probabilistic.crossentropy_by_shapes,
    losses.binary_crossentropy,
    losses.categorical_crossentropy,
    losses.mean_absolute_error,
    losses.mean_squared_error,
    losses.sparse_categorical_crossentropy,
)
"""What a `MeanMetricWrapper` may take the mean of; what others wrap is their own."""


_UPDATES = {cls: cls.update_state for cls in _ROW_BY_ROW}


def goes_row_by_row(metric: Any) -> bool:
    """Whether copies of a row of weight 0 do not change the metric of predictions (rows, ..., n).

    Subclasses and functions of users may do anything, and do not count; nor does a class whose `update_state` was
    replaced.

    Args:
        metric: any metric.
    """
    cls = type(metric)
    if cls not in _UPDATES or cls.update_state is not _UPDATES[cls]:
        return False
    if any(callable(getattr(cls, name, None)) for name in vars(metric)):
        return False
    if cls is reduction.MeanMetricWrapper:
        return any(metric._fn is known for known in _FUNCTIONS) and not metric._fn_kwargs
    # without weights, values of a class to be ignored count as 0; with weights not at all
    arguments = vars(metric).get("_fn_kwargs", {})
    return arguments.get("axis", -1) == -1 and arguments.get("ignore_class") is None
