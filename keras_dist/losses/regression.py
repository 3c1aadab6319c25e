"""Losses of predicted numbers, counts and distributions, and hinge losses of scores."""

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


def kl_divergence(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`sum(y_true * log(y_true / y_pred), axis=-1)`, (batch, ...), with probabilities clipped to [1e-7, 1].

    Args:
        y_true, y_pred: probabilities (batch, ..., classes).

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = (jnp.clip(p, epsilon(), 1) for p in matched("kl_divergence", y_true, y_pred))
    return optax.losses.kl_divergence(jnp.log(y_pred), y_true)


def poisson(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean(y_pred - y_true * log(y_pred), axis=-1)`, (batch, ...).

    Args:
        y_true: counts (batch, ..., n).
        y_pred: rates above 0 (batch, ..., n).

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("poisson", y_true, y_pred)
    return jnp.mean(y_pred - y_true * jnp.log(y_pred + epsilon()), axis=-1)


class KLDivergence(FunctionLoss, function=kl_divergence):
    """`sum(y_true * log(y_true / y_pred))` as a `Loss`. Arguments as in `Loss`."""


class Poisson(ElementwiseLoss, function=poisson):
    """`mean(y_pred - y_true * log(y_pred))` as a `Loss`. Arguments as in `Loss`."""


def hinge(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean(max(1 - y_true * y_pred, 0), axis=-1)`, (batch, ...).

    Args:
        y_true: -1 or 1; a batch of 0 and 1 is converted.
        y_pred: scores (batch, ..., n).

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("hinge", y_true, y_pred)
    return jnp.mean(optax.hinge_loss(y_pred, _signs(y_true)), axis=-1)


def squared_hinge(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`mean(max(1 - y_true * y_pred, 0)**2, axis=-1)`. Arguments as in `hinge`."""
    y_true, y_pred = matched("squared_hinge", y_true, y_pred)
    return jnp.mean(optax.hinge_loss(y_pred, _signs(y_true)) ** 2, axis=-1)


def categorical_hinge(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`max(neg - pos + 1, 0)` with `pos = sum(y_true * y_pred, axis=-1)`, `neg = max((1 - y_true) * y_pred, axis=-1)`.

    Args:
        y_true: one-hot rows (batch, ..., classes).
        y_pred: scores (batch, ..., classes).
    """
    y_true, y_pred = matched("categorical_hinge", y_true, y_pred)
    pos = jnp.sum(y_true * y_pred, axis=-1)
    neg = jnp.max((1.0 - y_true) * y_pred, axis=-1)
    return jnp.maximum(neg - pos + 1.0, 0.0)


def _signs(y_true: jax.Array) -> jax.Array:
    """Convert a batch of 0 and 1 to -1 and 1."""
    is_binary = jnp.all((y_true == 0) | (y_true == 1))
    return jnp.where(is_binary, 2 * y_true - 1, y_true)


class Hinge(ElementwiseLoss, function=hinge):
    """`mean(max(1 - y_true * y_pred, 0))` as a `Loss`. Arguments as in `Loss`."""


class SquaredHinge(ElementwiseLoss, function=squared_hinge):
    """`mean(max(1 - y_true * y_pred, 0)**2)` as a `Loss`. Arguments as in `Loss`."""


class CategoricalHinge(FunctionLoss, function=categorical_hinge):
    """`max(neg - pos + 1, 0)` as a `Loss`; see `categorical_hinge`. Arguments as in `Loss`."""
