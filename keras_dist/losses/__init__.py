"""Losses: functions of `(y_true, y_pred)` that give a value for each example, and their reduction to one number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._signatures import takes
from keras_dist.errors import ModelError, UnknownNameError, did_you_mean, shorten

__all__ = [
    "MeanSquaredError",
    "SparseCategoricalCrossentropy",
    "align",
    "align_ranks",
    "check_arrays",
    "check_values",
    "get",
    "mean_squared_error",
    "needs_targets",
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
    check_arrays("sparse_categorical_crossentropy", y_true, y_pred)
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
        ModelError: it is neither a name nor a callable with these parameters.
    """
    if callable(identifier):
        if takes(identifier, None, None):
            return identifier
        raise ModelError(
            "`loss` cannot be called as loss(y_true, y_pred)",
            given=shorten(identifier),
            expected="a callable (y_true, y_pred) -> values",
            fix="change its parameters, make an object of a class, or wrap it: lambda y_true, y_pred: ...",
        )
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
        given=f"{shorten(identifier)} of type {type(identifier).__name__}",
        expected="a name or a callable (y_true, y_pred) -> values",
        fix='for example loss="mse"',
    )


def needs_targets(loss: Callable[[Any, Any], Any]) -> bool:
    """Whether `loss` is one of this module, which compare with `y`; others may do without."""
    return loss in _NAMES.values() or isinstance(loss, MeanSquaredError | SparseCategoricalCrossentropy)


def check_arrays(name: str, y_true: Any, y_pred: Any) -> None:
    """Nothing, if both are arrays.

    Raises:
        ModelError: one is None, a dict or the like.
    """
    for argument, value in (("y_true", y_true), ("y_pred", y_pred)):
        if not _is_array(value):
            raise ModelError(
                f"{name}: `{argument}` is not an array",
                given=f"{argument} of type {type(value).__name__}" + (f" with {list(value)}" if value else ""),
                expected="one array of targets and one of predictions",
                fix="pass a callable (y_true, y_pred) of your own that takes them apart, or choose one with `call=`",
            )


def align_ranks(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Both with one number of dims, when they are arrays that differ by a last dim of 1; anything else as it is.

    (batch,) beside (batch, 1) gains the dim; of more dims the last is dropped.

    Source: `keras.src.losses.loss.squeeze_or_expand_to_same_rank`.
    """
    if not (_is_array(y_true) and _is_array(y_pred)):
        return y_true, y_pred
    if y_true.ndim == y_pred.ndim + 1:
        y_pred, y_true = align_ranks(y_pred, y_true)
    elif y_pred.ndim == y_true.ndim + 1 and y_pred.shape[-1] == 1:
        return (y_true[:, None], y_pred) if y_true.ndim == 1 else (y_true, jnp.squeeze(y_pred, -1))
    return y_true, y_pred


def check_values(values: Any, y_true: Any, y_pred: Any, rows: int) -> jax.Array:
    """What a loss returned, if it is a scalar or has a value for each of the `rows` examples.

    Raises:
        ModelError: it is no array, has another length, or compares every example with every other.
    """
    if not (_is_array(values) or isinstance(values, int | float)):
        raise ModelError(
            "`loss` did not return an array",
            given=f"{shorten(values)} of type {type(values).__name__}",
            expected=f"a scalar, or values of shape ({rows}, ...)",
            fix="return one array from the loss",
        )
    shape, pair = jnp.shape(values), (rows, rows)
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves((y_true, y_pred))]
    compares_all = rows > 1 and y_true is not None and shape[:2] == pair and all(s[:2] != pair for s in shapes)
    if compares_all or (shape and shape[0] != rows):
        raise ModelError(
            "`loss` returned no value for each example",
            given=f"shape {shape} from arrays of shapes {', '.join(map(str, shapes))}",
            expected=f"a scalar, or a shape ({rows}, ...) that does not pair every example with every other",
            fix="give y_true and y_pred one shape in the loss, and reduce over all dims but the first",
        )
    return jnp.asarray(values)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


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
    check_arrays("the loss or metric", y_true, y_pred)
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
