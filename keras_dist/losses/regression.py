"""Losses of predicted numbers: squared, absolute, relative and logarithmic errors, Huber, log-cosh, cosine."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.losses.loss import ElementwiseLoss, FunctionLoss
from keras_dist.losses.targets import matched


def mean_squared_error(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean((y_true - y_pred)**2, axis=-1)`, (batch, ...).

    Args:
        y_true: targets, in the shape of `y_pred`, except for a last dim of 1.
        y_pred: predictions (batch, ..., n).

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("mean_squared_error", y_true, y_pred)
    return jnp.mean(optax.squared_error(y_pred, y_true), axis=-1)


def mean_absolute_error(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean(abs(y_true - y_pred), axis=-1)`. Shapes as in `mean_squared_error`."""
    y_true, y_pred = matched("mean_absolute_error", y_true, y_pred)
    return jnp.mean(jnp.abs(y_true - y_pred), axis=-1)


def mean_absolute_percentage_error(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`100 * mean(abs((y_true - y_pred) / y_true), axis=-1)` [%]. Shapes as in `mean_squared_error`.

    Absolute targets below 1e-7 count as 1e-7.
    """
    y_true, y_pred = matched("mean_absolute_percentage_error", y_true, y_pred)
    return 100.0 * jnp.mean(jnp.abs((y_true - y_pred) / jnp.maximum(jnp.abs(y_true), epsilon())), axis=-1)


def mean_squared_logarithmic_error(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean((log(1 + y_true) - log(1 + y_pred))**2, axis=-1)`. Shapes as in `mean_squared_error`.

    Numbers below 1e-7 count as 1e-7.
    """
    y_true, y_pred = matched("mean_squared_logarithmic_error", y_true, y_pred)
    logarithms = (jnp.log1p(jnp.maximum(y, epsilon())) for y in (y_pred, y_true))
    return jnp.mean(optax.squared_error(*logarithms), axis=-1)


def huber(y_true: ArrayLike, y_pred: ArrayLike, delta: float = 1.0) -> jax.Array:
    """`mean(e**2 / 2 if abs(e) <= delta else delta * (abs(e) - delta / 2), axis=-1)` with `e = y_true - y_pred`.

    Args:
        y_true, y_pred: as in `mean_squared_error`.
        delta: the error above which the loss is linear.
    """
    y_true, y_pred = matched("huber", y_true, y_pred)
    return jnp.mean(optax.huber_loss(y_pred, y_true, delta=delta), axis=-1)


def log_cosh(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean(log(cosh(y_pred - y_true)), axis=-1)`. Shapes as in `mean_squared_error`."""
    y_true, y_pred = matched("log_cosh", y_true, y_pred)
    return jnp.mean(optax.log_cosh(y_pred, y_true), axis=-1)


def cosine_similarity(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`-sum(y_true * y_pred, axis) / (norm(y_true, axis) * norm(y_pred, axis))`; 0 where a vector is zero.

    Args:
        y_true, y_pred: as in `mean_squared_error`.
        axis: the dim of the vectors.
    """
    y_true, y_pred = matched("cosine_similarity", y_true, y_pred)
    return -optax.cosine_similarity(y_pred, y_true, epsilon=epsilon() ** 2, axis=axis)


class MeanSquaredError(ElementwiseLoss, function=mean_squared_error):
    """`mean((y_true - y_pred)**2)` as a `Loss`. Arguments as in `Loss`."""


class MeanAbsoluteError(ElementwiseLoss, function=mean_absolute_error):
    """`mean(abs(y_true - y_pred))` as a `Loss`. Arguments as in `Loss`."""


class MeanAbsolutePercentageError(ElementwiseLoss, function=mean_absolute_percentage_error):
    """`100 * mean(abs((y_true - y_pred) / y_true))` [%] as a `Loss`. Arguments as in `Loss`."""


class MeanSquaredLogarithmicError(ElementwiseLoss, function=mean_squared_logarithmic_error):
    """`mean((log(1 + y_true) - log(1 + y_pred))**2)` as a `Loss`. Arguments as in `Loss`."""


class Huber(ElementwiseLoss, function=huber):
    """`mean(e**2 / 2 if abs(e) <= delta else delta * (abs(e) - delta / 2))` with `e = y_true - y_pred`, as a `Loss`.

    Arguments as in `huber` and `Loss`.
    """

    def __init__(
        self,
        delta: float = 1.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "huber_loss",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, delta=delta)


class LogCosh(ElementwiseLoss, function=log_cosh):
    """`mean(log(cosh(y_pred - y_true)))` as a `Loss`. Arguments as in `Loss`."""


class CosineSimilarity(FunctionLoss, function=cosine_similarity):
    """`-sum(y_true * y_pred, axis) / (norm(y_true, axis) * norm(y_pred, axis))` as a `Loss`.

    Arguments as in `cosine_similarity` and `Loss`.
    """

    def __init__(
        self,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "cosine_similarity",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, axis=axis)
