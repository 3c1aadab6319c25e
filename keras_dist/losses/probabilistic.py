"""Distances between distributions and of counts from rates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from keras_dist.losses.arguments import EPSILON, matched
from keras_dist.losses.loss import ElementwiseLoss, LibraryLoss


def kl_divergence(y_true: Any, y_pred: Any) -> jax.Array:
    """`sum(y_true * log(y_true / y_pred), axis=-1)`, probabilities clipped to [1e-7, 1].

    Args:
        y_true: probabilities (batch, ..., classes).
        y_pred: probabilities (batch, ..., classes).

    Returns:
        (batch, ...).

    Raises:
        ModelError: the shapes differ.

    Source: `keras.losses.kl_divergence`.
    """
    y_true, y_pred = (jnp.clip(p, EPSILON, 1) for p in matched("kl_divergence", y_true, y_pred))
    return optax.losses.kl_divergence(jnp.log(y_pred), y_true)


def poisson(y_true: Any, y_pred: Any) -> jax.Array:
    """`mean(y_pred - y_true * log(y_pred), axis=-1)`.

    Args:
        y_true: counts (batch, ..., n).
        y_pred: rates above 0 (batch, ..., n).

    Returns:
        (batch, ...).

    Raises:
        ModelError: the shapes differ.

    Source: `keras.losses.poisson`.
    """
    y_true, y_pred = matched("poisson", y_true, y_pred)
    return jnp.mean(y_pred - y_true * jnp.log(y_pred + EPSILON), axis=-1)


class KLDivergence(LibraryLoss):
    """`kl_divergence` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.KLDivergence`.
    """

    def __init__(
        self, reduction: str | None = "sum_over_batch_size", name: str = "kl_divergence", dtype: Any = None
    ) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return kl_divergence(y_true, y_pred)


class Poisson(ElementwiseLoss):
    """`poisson` as a loss.

    Args:
        reduction: as in `Loss`.
        name: of the loss.
        dtype: as in `Loss`.

    Source: `keras.losses.Poisson`.
    """

    def __init__(self, reduction: str | None = "sum_over_batch_size", name: str = "poisson", dtype: Any = None) -> None:
        super().__init__(name, reduction, dtype)

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example."""
        return poisson(y_true, y_pred)
