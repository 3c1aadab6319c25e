"""How far predictions rise and fall with targets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.losses.arguments import EPSILON, matched
from keras_dist.metrics.reduction import MeanMetricWrapper


def pearson_correlation(y_true: Any, y_pred: Any, axis: int = -1) -> jax.Array:
    """The correlation of target and prediction along `axis`, from -1 to 1.

    Source: `keras.metrics.pearson_correlation`.
    """
    y_true, y_pred = (_standardized(values, axis) for values in matched("pearson_correlation", y_true, y_pred))
    return jnp.mean(y_true * y_pred, axis=axis)


def concordance_correlation(y_true: Any, y_pred: Any, axis: int = -1) -> jax.Array:
    """Their agreement along `axis`: correlation that also falls with differences of mean and scale, from -1 to 1.

    Source: `keras.metrics.concordance_correlation`.
    """
    y_true, y_pred = matched("concordance_correlation", y_true, y_pred)
    true_mean, pred_mean = (jnp.mean(values, axis=axis, keepdims=True) for values in (y_true, y_pred))
    spread = jnp.var(y_true, axis=axis) + jnp.var(y_pred, axis=axis)
    distance = jnp.square(true_mean - pred_mean).squeeze(axis)
    covariance = jnp.mean((y_true - pred_mean) * (y_pred - pred_mean), axis=axis)
    return 2 * covariance / (spread + distance + EPSILON)


class PearsonCorrelation(MeanMetricWrapper):
    """The mean over examples of the correlation between target and prediction.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        axis: the dim along which values are correlated.

    Source: `keras.metrics.PearsonCorrelation`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "pearson_correlation", dtype: Any = None, axis: int = -1) -> None:
        super().__init__(pearson_correlation, name, dtype, axis=axis)


class ConcordanceCorrelation(MeanMetricWrapper):
    """The mean over examples of the concordance between target and prediction.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        axis: the dim along which values are compared.

    Source: `keras.metrics.ConcordanceCorrelation`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "concordance_correlation", dtype: Any = None, axis: int = -1) -> None:
        super().__init__(concordance_correlation, name, dtype, axis=axis)


def _standardized(values: jax.Array, axis: int) -> jax.Array:
    centred = values - jnp.mean(values, axis=axis, keepdims=True)
    return centred / jnp.std(centred, axis=axis, keepdims=True)
