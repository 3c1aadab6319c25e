"""Losses of overlapping regions: Dice and Tversky."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.losses.loss import FunctionLoss
from keras_dist.losses.targets import matched


def dice(y_true: ArrayLike, y_pred: ArrayLike, axis: int | Sequence[int] | None = None) -> jax.Array:
    """`1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred))`.

    Args:
        y_true: membership in the region, from 0 to 1, in the shape of `y_pred`.
        y_pred: probabilities (batch, ...).
        axis: the dims of a region, which the result lacks; None for all.

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("dice", y_true, y_pred)
    axis = _dims(axis)
    both = jnp.sum(y_true * y_pred, axis)
    return 1 - 2 * both / (jnp.sum(y_true, axis) + jnp.sum(y_pred, axis) + epsilon())


def tversky(
    y_true: ArrayLike, y_pred: ArrayLike, alpha: float = 0.5, beta: float = 0.5, axis: int | Sequence[int] | None = None
) -> jax.Array:
    """`1 - both / (both + alpha * missed + beta * wrong)`.

    `both = sum(y_true * y_pred)`, `missed = sum(y_true * (1 - y_pred))`, `wrong = sum(y_pred * (1 - y_true))`.

    Args:
        y_true, y_pred, axis: as in `dice`.
        alpha: weight of false negatives (as Keras computes; its docs say false positives).
        beta: weight of false positives.

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("tversky", y_true, y_pred)
    axis = _dims(axis)
    both = jnp.sum(y_true * y_pred, axis)
    missed, wrong = jnp.sum(y_true * (1 - y_pred), axis), jnp.sum(y_pred * (1 - y_true), axis)
    return 1 - both / (both + alpha * missed + beta * wrong + epsilon())


def _dims(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


class Dice(FunctionLoss, function=dice):
    """`1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred))` as a `Loss`.

    Arguments as in `dice` and `Loss`. Without `axis` the loss is a scalar, to which no weights can be applied.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "dice",
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, axis=axis)


class Tversky(FunctionLoss, function=tversky):
    """`1 - both / (both + alpha * missed + beta * wrong)` as a `Loss`.

    Arguments as in `tversky` and `Loss`. Without `axis` the loss is a scalar, to which no weights can be applied.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        reduction: str | None = "sum_over_batch_size",
        name: str = "tversky",
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, alpha=alpha, beta=beta, axis=axis)
