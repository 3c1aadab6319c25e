"""Correlations of predictions with targets: Pearson, concordance."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.losses.targets import matched
from keras_dist.metrics.reduction import FunctionMetric


def pearson_correlation(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`cov(y_true, y_pred) / (std(y_true) * std(y_pred))` along `axis`, from -1 to 1."""
    y_true, y_pred = (_standardized(values, axis) for values in matched("pearson_correlation", y_true, y_pred))
    return jnp.mean(y_true * y_pred, axis=axis)


def concordance_correlation(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`2 * cov(y_true, y_pred) / (var(y_true) + var(y_pred) + (mean(y_true) - mean(y_pred))**2)`, from -1 to 1."""
    y_true, y_pred = matched("concordance_correlation", y_true, y_pred)
    true_mean, pred_mean = (jnp.mean(values, axis=axis, keepdims=True) for values in (y_true, y_pred))
    spread = jnp.var(y_true, axis=axis) + jnp.var(y_pred, axis=axis)
    distance = jnp.square(true_mean - pred_mean).squeeze(axis)
    covariance = jnp.mean((y_true - pred_mean) * (y_pred - pred_mean), axis=axis)
    return 2 * covariance / (spread + distance + epsilon())


class PearsonCorrelation(FunctionMetric, function=pearson_correlation, direction="up"):
    """Mean of `cov(y_true, y_pred) / (std(y_true) * std(y_pred))` along `axis`.

    Args:
        axis: the dim along which values are correlated.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "pearson_correlation",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, axis=axis)


class ConcordanceCorrelation(FunctionMetric, function=concordance_correlation, direction="up"):
    """Mean of `2 * cov(y_true, y_pred) / (var(y_true) + var(y_pred) + (mean(y_true) - mean(y_pred))**2)` along `axis`.

    Args:
        axis: the dim along which values are compared.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "concordance_correlation",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, axis=axis)


def _standardized(values: jax.Array, axis: int) -> jax.Array:
    centred = values - jnp.mean(values, axis=axis, keepdims=True)
    return centred / jnp.std(centred, axis=axis, keepdims=True)
