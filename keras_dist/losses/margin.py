"""Hinge losses."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.types import ArrayLike
from keras_dist.losses.loss import ElementwiseLoss, FunctionLoss
from keras_dist.losses.targets import matched


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
