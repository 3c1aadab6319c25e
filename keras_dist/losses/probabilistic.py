"""Kullback-Leibler divergence and Poisson loss."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.types import ArrayLike
from keras_dist.config.settings import epsilon
from keras_dist.losses.loss import ElementwiseLoss, FunctionLoss
from keras_dist.losses.targets import matched


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
