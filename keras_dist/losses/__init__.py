"""Losses: functions of `(y_true, y_pred)` that give a value for each example, and their reduction to one number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError, UnknownNameError, did_you_mean

__all__ = [
    "MeanSquaredError",
    "SparseCategoricalCrossentropy",
    "align",
    "get",
    "mean_squared_error",
    "reduce_mean",
    "sparse_categorical_crossentropy",
]

_EPSILON = 1e-7


def mean_squared_error(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """`mean((y_pred - y_true)**2, axis=-1)`, a value for each example.

    Args:
        y_true: targets, of `y_pred`'s shape up to a last dim of 1.
        y_pred: predictions (batch, ...).

    Source: `keras.losses.mean_squared_error`.
    """
    y_true, y_pred = align(y_true, y_pred)
    squared = jnp.square(y_pred - y_true)
    return jnp.mean(squared, axis=-1) if squared.ndim > 1 else squared


def sparse_categorical_crossentropy(y_true: jax.Array, y_pred: jax.Array, from_logits: bool = False) -> jax.Array:
    """`-log p[y_true]`, a value for each example.

    Args:
        y_true: class indices (batch, ...) or (batch, ..., 1).
        y_pred: probabilities or logits (batch, ..., classes).
        from_logits: whether `y_pred` holds logits.

    Returns:
        Shape of `y_true`. A class index out of range gives NaN.

    Raises:
        ModelError: the shapes do not fit.

    Source: `keras.losses.sparse_categorical_crossentropy`.
    """
    if y_true.ndim == y_pred.ndim and y_true.shape[-1] == 1:
        y_true = jnp.squeeze(y_true, -1)
    if y_true.shape != y_pred.shape[:-1]:
        raise ModelError(
            "sparse_categorical_crossentropy: `y_true` does not fit `y_pred`",
            given=f"y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}",
            expected=f"class indices of shape {y_pred.shape[:-1]}",
            fix="for one-hot targets pass their argmax",
        )
    if from_logits:
        log_probabilities = jax.nn.log_softmax(y_pred, axis=-1)
    else:
        probabilities = y_pred / jnp.sum(y_pred, axis=-1, keepdims=True)
        log_probabilities = jnp.log(jnp.clip(probabilities, _EPSILON, 1.0 - _EPSILON))
    classes = y_pred.shape[-1]
    index = jnp.where(y_true < 0, classes, y_true).astype(jnp.int32)[..., None]
    return -jnp.take_along_axis(log_probabilities, index, axis=-1, mode="fill", fill_value=jnp.nan)[..., 0]


@dataclasses.dataclass(frozen=True)
class MeanSquaredError:
    """`mean_squared_error` as an object; see there.

    Source: `keras.losses.MeanSquaredError`.
    """

    def __call__(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """A value for each example."""
        return mean_squared_error(y_true, y_pred)


@dataclasses.dataclass(frozen=True)
class SparseCategoricalCrossentropy:
    """`sparse_categorical_crossentropy` with its choice of logits.

    Args:
        from_logits: whether predictions are logits.

    Source: `keras.losses.SparseCategoricalCrossentropy`.
    """

    from_logits: bool = False

    def __call__(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """A value for each example."""
        return sparse_categorical_crossentropy(y_true, y_pred, self.from_logits)


_NAMES: dict[str, Callable[[Any, Any], Any]] = {
    "mse": mean_squared_error,
    "mean_squared_error": mean_squared_error,
    "sparse_categorical_crossentropy": sparse_categorical_crossentropy,
}


def get(identifier: Any) -> Callable[[Any, Any], Any]:
    """The loss called `identifier`; a callable `(y_true, y_pred) -> per-example values or scalar` as it is.

    Raises:
        UnknownNameError: no loss has this name.
        ModelError: it is neither a name nor a callable.
    """
    if callable(identifier):
        return identifier
    if isinstance(identifier, str):
        if identifier in _NAMES:
            return _NAMES[identifier]
        raise UnknownNameError(
            f"unknown loss {identifier!r}{did_you_mean(identifier, _NAMES)}",
            given=f"loss={identifier!r}",
            expected=f"one of {', '.join(sorted(_NAMES))}, or a callable (y_true, y_pred) -> values",
            fix="correct the name, or pass a function",
        )
    raise ModelError(
        "`loss` is neither a name nor a callable",
        given=f"{identifier!r} of type {type(identifier).__name__}",
        expected="a name or a callable (y_true, y_pred) -> values",
        fix='for example loss="mse"',
    )


def reduce_mean(values: jax.Array, sample_weight: jax.Array | None) -> jax.Array:
    """The loss of a batch: the mean of `values`, each times its example's weight.

    As in Keras the sum of weighted values is divided by the number of values, not by the sum of weights.

    Args:
        values: (batch, ...), or a scalar when there are no weights.
        sample_weight: (batch,) or any shape that `values` starts with; None for 1.

    Raises:
        ModelError: weights are given and the loss is a scalar, or they do not fit.
    """
    if sample_weight is None:
        return jnp.mean(values)
    weight = jnp.asarray(sample_weight)
    if weight.ndim == values.ndim + 1 and weight.shape[-1] == 1:
        weight = jnp.squeeze(weight, -1)
    if values.ndim == 0 or values.shape[: weight.ndim] != weight.shape:
        raise ModelError(
            "`sample_weight` does not fit the loss",
            given=f"sample_weight of shape {weight.shape}, loss of shape {values.shape}",
            expected="a loss with a value for each example, and a weight for each",
            fix="let the loss return one value for each example instead of their mean",
        )
    return jnp.mean(values * weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim)))


def align(y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both with the same shape; a last dim of 1 that only one of them has is dropped.

    Raises:
        ModelError: the shapes differ otherwise. (Broadcasting (8,) against (8, 1) would compare every pair.)
    """
    if y_true.ndim == y_pred.ndim + 1 and y_true.shape[-1] == 1:
        y_true = jnp.squeeze(y_true, -1)
    if y_pred.ndim == y_true.ndim + 1 and y_pred.shape[-1] == 1:
        y_pred = jnp.squeeze(y_pred, -1)
    if y_true.shape != y_pred.shape:
        raise ModelError(
            "targets do not have the shape of the predictions",
            given=f"y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}",
            expected="equal shapes",
            fix="reshape the targets, or change the last layer of the model",
        )
    return jnp.asarray(y_true, y_pred.dtype), y_pred
