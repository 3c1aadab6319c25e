"""Distances between numbers: squared, absolute, relative, logarithmic errors, Huber, log-cosh, cosine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from keras_dist.losses.arguments import EPSILON, matched
from keras_dist.losses.loss import ElementwiseLoss, LibraryLoss


def mean_squared_error(y_true: Any, y_pred: Any) -> jax.Array:
    """`mean((y_true - y_pred)**2, axis=-1)`.

    Args:
        y_true: targets, of `y_pred`'s shape up to a last dim of 1.
        y_pred: predictions (batch, ..., n).

    Returns:
        (batch, ...).

    Raises:
        ModelError: the shapes differ.

    Source: `keras.losses.mean_squared_error`.
    """
    y_true, y_pred = matched("mean_squared_error", y_true, y_pred)
    return jnp.mean(optax.squared_error(y_pred, y_true), axis=-1)


def mean_absolute_error(y_true: Any, y_pred: Any) -> jax.Array:
    """`mean(abs(y_true - y_pred), axis=-1)`; shapes as of `mean_squared_error`.

    Source: `keras.losses.mean_absolute_error`.
    """
    y_true, y_pred = matched("mean_absolute_error", y_true, y_pred)
    return jnp.mean(jnp.abs(y_true - y_pred), axis=-1)


def mean_absolute_percentage_error(y_true: Any, y_pred: Any) -> jax.Array:
    """`100 * mean(abs((y_true - y_pred) / y_true), axis=-1)` [%]; shapes as of `mean_squared_error`.

    Targets nearer to 0 than 1e-7 count as 1e-7.

    Source: `keras.losses.mean_absolute_percentage_error`.
    """
    y_true, y_pred = matched("mean_absolute_percentage_error", y_true, y_pred)
    return 100.0 * jnp.mean(jnp.abs((y_true - y_pred) / jnp.maximum(jnp.abs(y_true), EPSILON)), axis=-1)


def mean_squared_logarithmic_error(y_true: Any, y_pred: Any) -> jax.Array:
    """`mean((log(1 + y_true) - log(1 + y_pred))**2, axis=-1)`; shapes as of `mean_squared_error`.

    Numbers below 0 count as 0.

    Source: `keras.losses.mean_squared_logarithmic_error`.
    """
    y_true, y_pred = matched("mean_squared_logarithmic_error", y_true, y_pred)
    logarithms = (jnp.log1p(jnp.maximum(y, EPSILON)) for y in (y_pred, y_true))
    return jnp.mean(optax.squared_error(*logarithms), axis=-1)


def huber(y_true: Any, y_pred: Any, delta: float = 1.0) -> jax.Array:
    """Half the squared error up to `delta`, from there on linear; the mean over the last dim.

    Args:
        y_true: targets, as of `mean_squared_error`.
        y_pred: predictions (batch, ..., n).
        delta: the error where the parabola goes over into a line.

    Source: `keras.losses.huber`.
    """
    y_true, y_pred = matched("huber", y_true, y_pred)
    return jnp.mean(optax.huber_loss(y_pred, y_true, delta=delta), axis=-1)


def log_cosh(y_true: Any, y_pred: Any) -> jax.Array:
    """`mean(log(cosh(y_pred - y_true)), axis=-1)`; shapes as of `mean_squared_error`.

    Source: `keras.losses.log_cosh`.
    """
    y_true, y_pred = matched("log_cosh", y_true, y_pred)
    return jnp.mean(optax.log_cosh(y_pred, y_true), axis=-1)


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> jax.Array:
    """Minus the cosine of the angle between vectors: -1 for the same direction, 0 when one is zero.

    Args:
        y_true: targets, as of `mean_squared_error`.
        y_pred: predictions (batch, ...).
        axis: the dim along which vectors lie.

    Source: `keras.losses.cosine_similarity`.
    """
    y_true, y_pred = matched("cosine_similarity", y_true, y_pred)
    return -optax.cosine_similarity(y_pred, y_true, epsilon=EPSILON**2, axis=axis)


class MeanSquaredError(ElementwiseLoss):
    """`mean_squared_error` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.MeanSquaredError`.
    """

    def __init__(
        self, reduction: str | None = "sum_over_batch_size", name: str = "mean_squared_error", dtype: Any = None
    ) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return mean_squared_error(y_true, y_pred)


class MeanAbsoluteError(ElementwiseLoss):
    """`mean_absolute_error` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.MeanAbsoluteError`.
    """

    def __init__(
        self, reduction: str | None = "sum_over_batch_size", name: str = "mean_absolute_error", dtype: Any = None
    ) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return mean_absolute_error(y_true, y_pred)


class MeanAbsolutePercentageError(ElementwiseLoss):
    """`mean_absolute_percentage_error` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.MeanAbsolutePercentageError`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "mean_absolute_percentage_error",
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return mean_absolute_percentage_error(y_true, y_pred)


class MeanSquaredLogarithmicError(ElementwiseLoss):
    """`mean_squared_logarithmic_error` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.MeanSquaredLogarithmicError`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "mean_squared_logarithmic_error",
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return mean_squared_logarithmic_error(y_true, y_pred)


class Huber(ElementwiseLoss):
    """`huber` as a loss.

    Args:
        delta: the error where the parabola goes over into a line.
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.Huber`.
    """

    def __init__(
        self,
        delta: float = 1.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "huber_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.delta = delta

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return huber(y_true, y_pred, delta=self.delta)


class LogCosh(ElementwiseLoss):
    """`log_cosh` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.LogCosh`.
    """

    def __init__(
        self, reduction: str | None = "sum_over_batch_size", name: str = "log_cosh", dtype: Any = None
    ) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return log_cosh(y_true, y_pred)


class CosineSimilarity(LibraryLoss):
    """`cosine_similarity` as a loss.

    Args:
        axis: the dim along which vectors lie.
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.CosineSimilarity`.
    """

    def __init__(
        self,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "cosine_similarity",
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.axis = axis

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return cosine_similarity(y_true, y_pred, axis=self.axis)
