"""Which losses are sums or means of values that each follow from one row."""

from __future__ import annotations

from typing import Any

from keras_dist.losses import binary, categorical, margin, probabilistic, regression, sequence
from keras_dist.losses.loss import Loss

_ROW_BY_ROW: frozenset[type[Loss]] = frozenset(
    (
        binary.BinaryCrossentropy,
        binary.BinaryFocalCrossentropy,
        categorical.CategoricalCrossentropy,
        categorical.CategoricalFocalCrossentropy,
        categorical.CategoricalGeneralizedCrossEntropy,
        categorical.SparseCategoricalCrossentropy,
        margin.CategoricalHinge,
        margin.Hinge,  # whether targets are 0 and 1 is asked of all rows: copies of one change nothing
        margin.SquaredHinge,
        probabilistic.KLDivergence,
        probabilistic.Poisson,
        regression.CosineSimilarity,
        regression.Huber,
        regression.LogCosh,
        regression.MeanAbsoluteError,
        regression.MeanAbsolutePercentageError,
        regression.MeanSquaredError,
        regression.MeanSquaredLogarithmicError,
        sequence.CTC,
    )
)


def goes_row_by_row(loss: Any) -> bool:
    """Whether copies of a row that a mask leaves out do not change the loss of predictions (rows, ..., n).

    Subclasses and functions of users may do anything, and do not count.

    Args:
        loss: any loss.
    """
    if type(loss) not in _ROW_BY_ROW or any(callable(getattr(type(loss), name, None)) for name in vars(loss)):
        return False
    # a mean by weights divides by other sums where there is a mask for rows, and no weights
    return getattr(loss, "axis", -1) == -1 and loss.reduction in ("mean", "sum", "sum_over_batch_size")
