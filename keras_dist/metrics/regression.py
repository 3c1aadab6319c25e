"""Mean errors of predicted numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.losses.regression import (
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
)
from keras_dist.losses.targets import matched
from keras_dist.metrics.reduction import FunctionMetric, Mean


def cosine_similarity(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`sum(y_true * y_pred, axis) / (norm(y_true, axis) * norm(y_pred, axis))`, with the sign of the metric."""
    y_true, y_pred = matched("cosine_similarity", y_true, y_pred)
    return jnp.sum(_normalized(y_true, axis) * _normalized(y_pred, axis), axis=axis)


class MeanSquaredError(FunctionMetric, function=mean_squared_error, direction="down"):
    """Mean of `(y_pred - y_true)**2`. Arguments as in `Metric`."""


class MeanAbsoluteError(FunctionMetric, function=mean_absolute_error, direction="down"):
    """Mean of `abs(y_pred - y_true)`. Arguments as in `Metric`."""


class MeanAbsolutePercentageError(FunctionMetric, function=mean_absolute_percentage_error, direction="down"):
    """Mean of `100 * abs(y_pred - y_true) / abs(y_true)` [%]. Arguments as in `Metric`."""


class MeanSquaredLogarithmicError(FunctionMetric, function=mean_squared_logarithmic_error, direction="down"):
    """Mean of `(log(1 + y_pred) - log(1 + y_true))**2`. Arguments as in `Metric`."""


class LogCoshError(FunctionMetric, function=log_cosh, direction="down"):
    """Mean of `log(cosh(y_pred - y_true))`. Arguments as in `Metric`."""

    def __init__(self, name: str | None = "logcosh", dtype: DTypeLike | None = None, mesh: object = None) -> None:
        super().__init__(name, dtype, mesh)


class CosineSimilarity(FunctionMetric, function=cosine_similarity, direction="up"):
    """Mean of `sum(y_true * y_pred, axis) / (norm(y_true, axis) * norm(y_pred, axis))`.

    Args:
        axis: the dim of the vectors.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "cosine_similarity",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, axis=axis)


class RootMeanSquaredError(Mean, direction="down"):
    """`sqrt(mean((y_pred - y_true)**2))` over all examples at once."""

    def __init__(
        self, name: str | None = "root_mean_squared_error", dtype: DTypeLike | None = None, mesh: object = None
    ) -> None:
        super().__init__(name, dtype, mesh)

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add a batch."""
        y_true, y_pred = matched("root_mean_squared_error", y_true, y_pred)
        super().update_state(jnp.square((y_pred - y_true).astype(self.dtype)), sample_weight)

    def result(self) -> jax.Array:
        """Return the root so far."""
        return jnp.sqrt(super().result())


def _normalized(vectors: jax.Array, axis: int) -> jax.Array:
    return vectors / jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(vectors), axis=axis, keepdims=True), 1e-12))
