"""Which losses are sums or means of values that each follow from one row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

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


_CALLS = {cls: cls.call for cls in _ROW_BY_ROW}


def goes_row_by_row(loss: Any) -> bool:
    """Whether copies of a row that a mask leaves out do not change the loss of predictions (rows, ..., n).

    Subclasses and functions of users may do anything, and do not count; nor does a class whose `call` was replaced.

    Args:
        loss: any loss.
    """
    cls = type(loss)
    if cls not in _CALLS or cls.call is not _CALLS[cls]:
        return False
    if any(callable(getattr(cls, name, None)) for name in vars(loss)):
        return False
    # a mask for rows comes with factors that half precision would round
    if jnp.finfo(loss.dtype).bits < 32:
        return False
    # a mean by weights divides by other sums where there is a mask for rows, and no weights
    return getattr(loss, "axis", -1) == -1 and loss.reduction in ("mean", "sum", "sum_over_batch_size")
