"""Overlaps of regions: Dice and Tversky."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.losses.arguments import EPSILON, matched
from keras_dist.losses.loss import LibraryLoss


def dice(y_true: Any, y_pred: Any, axis: int | Sequence[int] | None = None) -> jax.Array:
    """`1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred))`.

    Args:
        y_true: which entries belong to the region, from 0 to 1, of `y_pred`'s shape.
        y_pred: probabilities (batch, ...).
        axis: the dims of a region; None for all, which gives a scalar.

    Returns:
        `y_pred`'s shape without `axis`.

    Raises:
        ModelError: the shapes differ.

    Source: `keras.losses.dice`.
    """
    y_true, y_pred = matched("dice", y_true, y_pred)
    axis = _dims(axis)
    both = jnp.sum(y_true * y_pred, axis)
    return 1 - 2 * both / (jnp.sum(y_true, axis) + jnp.sum(y_pred, axis) + EPSILON)


def tversky(
    y_true: Any, y_pred: Any, alpha: float = 0.5, beta: float = 0.5, axis: int | Sequence[int] | None = None
) -> jax.Array:
    """`1 - both / (both + alpha * sum(y_true * (1 - y_pred)) + beta * sum(y_pred * (1 - y_true)))`.

    `both` is `sum(y_true * y_pred)`.

    Args:
        y_true: as of `dice`.
        y_pred: probabilities (batch, ...).
        alpha: weight of what was missed. (The text in Keras has it for false positives; its numbers are these.)
        beta: weight of what was found and is not there.
        axis: the dims of a region; None for all, which gives a scalar.

    Returns:
        `y_pred`'s shape without `axis`.

    Raises:
        ModelError: the shapes differ.

    Source: `keras.losses.tversky`.
    """
    y_true, y_pred = matched("tversky", y_true, y_pred)
    axis = _dims(axis)
    both = jnp.sum(y_true * y_pred, axis)
    missed, wrong = jnp.sum(y_true * (1 - y_pred), axis), jnp.sum(y_pred * (1 - y_true), axis)
    return 1 - both / (both + alpha * missed + beta * wrong + EPSILON)


def _dims(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


class Dice(LibraryLoss):
    """`dice` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        axis: the dims of a region; None for all, which leaves no value to weight.
        dtype: as in `Loss`.

    Source: `keras.losses.Dice`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "dice",
        axis: int | Sequence[int] | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.axis = axis

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return dice(y_true, y_pred, axis=self.axis)


class Tversky(LibraryLoss):
    """`tversky` as a loss.

    Args:
        alpha: weight of what was missed.
        beta: weight of what was found and is not there.
        reduction: as in `Loss`.
        name: of the loss.
        axis: the dims of a region; None for all, which leaves no value to weight.
        dtype: as in `Loss`.

    Source: `keras.losses.Tversky`.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        reduction: str | None = "sum_over_batch_size",
        name: str = "tversky",
        axis: int | Sequence[int] | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self.alpha = alpha
        self.beta = beta
        self.axis = axis

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return tversky(y_true, y_pred, alpha=self.alpha, beta=self.beta, axis=self.axis)
