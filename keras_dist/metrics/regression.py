"""Errors of predicted numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.losses.arguments import matched
from keras_dist.losses.regression import (
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
)
from keras_dist.metrics.reduction import Mean, MeanMetricWrapper


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> jax.Array:
    """The cosine of the angle between target and prediction, for each example: 1 where they have one direction."""
    y_true, y_pred = matched("cosine_similarity", y_true, y_pred)
    return jnp.sum(_normalized(y_true, axis) * _normalized(y_pred, axis), axis=axis)


class MeanSquaredError(MeanMetricWrapper):
    """The mean of `(y_pred - y_true)**2`.

    Source: `keras.metrics.MeanSquaredError`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "mean_squared_error", dtype: Any = None) -> None:
        super().__init__(mean_squared_error, name, dtype)


class MeanAbsoluteError(MeanMetricWrapper):
    """The mean of `|y_pred - y_true|`.

    Source: `keras.metrics.MeanAbsoluteError`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "mean_absolute_error", dtype: Any = None) -> None:
        super().__init__(mean_absolute_error, name, dtype)


class MeanAbsolutePercentageError(MeanMetricWrapper):
    """The mean of `100 * |y_pred - y_true| / |y_true|` [%].

    Source: `keras.metrics.MeanAbsolutePercentageError`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "mean_absolute_percentage_error", dtype: Any = None) -> None:
        super().__init__(mean_absolute_percentage_error, name, dtype)


class MeanSquaredLogarithmicError(MeanMetricWrapper):
    """The mean of `(log(1 + y_pred) - log(1 + y_true))**2`.

    Source: `keras.metrics.MeanSquaredLogarithmicError`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "mean_squared_logarithmic_error", dtype: Any = None) -> None:
        super().__init__(mean_squared_logarithmic_error, name, dtype)


class LogCoshError(MeanMetricWrapper):
    """The mean of `log(cosh(y_pred - y_true))`.

    Source: `keras.metrics.LogCoshError`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "logcosh", dtype: Any = None) -> None:
        super().__init__(log_cosh, name, dtype)


class CosineSimilarity(MeanMetricWrapper):
    """The mean cosine of the angle between targets and predictions.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        axis: the dim that holds the vectors.

    Source: `keras.metrics.CosineSimilarity`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "cosine_similarity", dtype: Any = None, axis: int = -1) -> None:
        super().__init__(cosine_similarity, name, dtype, axis=axis)


class RootMeanSquaredError(Mean):
    """The square root of the mean of `(y_pred - y_true)**2`, over all examples at once.

    Source: `keras.metrics.RootMeanSquaredError`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "root_mean_squared_error", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add a batch."""
        y_true, y_pred = matched("root_mean_squared_error", y_true, y_pred)
        super().update_state(jnp.square((y_pred - y_true).astype(self.dtype)), sample_weight)

    def result(self) -> Any:
        """The root so far."""
        return jnp.sqrt(super().result())


def _normalized(vectors: jax.Array, axis: int) -> jax.Array:
    return vectors / jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(vectors), axis=axis, keepdims=True), 1e-12))
