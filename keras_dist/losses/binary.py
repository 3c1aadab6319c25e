"""Crossentropies of independent binary predictions."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.losses.loss import ElementwiseLoss
from keras_dist.losses.targets import matched


def binary_crossentropy(
    y_true: ArrayLike, y_pred: ArrayLike, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> jax.Array:
    """`-mean(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred), axis)`, (batch, ...).

    Args:
        y_true: from 0 to 1, in the shape of `y_pred`, except for a last dim of 1.
        y_pred: probabilities or logits (batch, ..., n).
        from_logits: whether `y_pred` holds logits.
        label_smoothing: fraction by which targets are moved towards 0.5, from 0 to 1.
        axis: the dim over which the mean is taken.

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("binary_crossentropy", y_true, y_pred)
    return jnp.mean(_crossentropy(_smooth(y_true, label_smoothing), y_pred, from_logits), axis)


def binary_focal_crossentropy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> jax.Array:
    """`binary_crossentropy` of each prediction times `(1 - p)**gamma`, `p` the probability of the target, (batch, ...).

    Args:
        y_true, y_pred, from_logits, label_smoothing, axis: as in `binary_crossentropy`.
        apply_class_balancing: whether targets of 1 have the weight `alpha`, and targets of 0 `1 - alpha`.
        alpha: the weight of targets of 1.
        gamma: focusing exponent; a larger one lowers the loss of confident, correct predictions.

    Differs from Keras: large logits give exact losses; Keras turns them into clipped probabilities.
    """
    y_true, y_pred = matched("binary_focal_crossentropy", y_true, y_pred)
    y_true = _smooth(y_true, label_smoothing)
    balance = alpha if apply_class_balancing else None
    if from_logits:
        return jnp.mean(optax.sigmoid_focal_loss(y_pred, y_true, alpha=balance, gamma=gamma), axis)
    right = y_true * y_pred + (1 - y_true) * (1 - y_pred)
    values = (1 - right) ** gamma * _crossentropy(y_true, y_pred, False)
    return jnp.mean(values if balance is None else values * (y_true * alpha + (1 - y_true) * (1 - alpha)), axis)


def _crossentropy(y_true: jax.Array, y_pred: jax.Array, from_logits: bool) -> jax.Array:
    if from_logits:
        return optax.sigmoid_binary_cross_entropy(y_pred, y_true)
    y_pred = jnp.clip(y_pred, epsilon(), 1 - epsilon())
    return -y_true * jnp.log(y_pred) - (1 - y_true) * jnp.log(1 - y_pred)


def _smooth(y_true: jax.Array, label_smoothing: float) -> jax.Array:
    return y_true * (1 - label_smoothing) + 0.5 * label_smoothing


class BinaryCrossentropy(ElementwiseLoss, function=binary_crossentropy):
    """`-mean(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred))` as a `Loss`.

    Arguments as in `binary_crossentropy` and `Loss`.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "binary_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, from_logits=from_logits, label_smoothing=label_smoothing, axis=axis)


class BinaryFocalCrossentropy(ElementwiseLoss, function=binary_focal_crossentropy):
    """`binary_crossentropy` with each prediction weighted by `(1 - p)**gamma`, as a `Loss`.

    Arguments as in `binary_focal_crossentropy` and `Loss`.
    """

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "binary_focal_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        balancing = {"apply_class_balancing": apply_class_balancing, "alpha": alpha, "gamma": gamma}
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing, "axis": axis}
        super().__init__(reduction, name, dtype, **balancing, **options)
