"""Accuracies: fractions of correct predictions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.errors import ModelError
from keras_dist.losses.crossentropies import kind_by_shapes
from keras_dist.losses.targets import align_ranks, as_arrays
from keras_dist.metrics.reduction import FunctionMetric
from keras_dist.serialization.registry import register_keras_serializable


def accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`y_true == y_pred`, as 0.0 and 1.0, for each value."""
    y_true, y_pred = align_ranks(*as_arrays("accuracy", y_true, y_pred))
    _check_shapes("accuracy", y_true.shape, y_pred.shape)
    return (y_true == y_pred).astype(jnp.float32)


@register_keras_serializable("keras_dist")
def accuracy_by_shapes(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`metrics=["accuracy"]`: binary accuracy for one score per example, sparse for class indices, else categorical."""
    y_true, y_pred = as_arrays("accuracy", y_true, y_pred)
    kind = kind_by_shapes(y_true, y_pred)
    if kind == "binary":
        return binary_accuracy(y_true, y_pred)
    return (sparse_categorical_accuracy if kind == "sparse" else categorical_accuracy)(y_true, y_pred)


def binary_accuracy(y_true: ArrayLike, y_pred: ArrayLike, threshold: float = 0.5) -> jax.Array:
    """`(y_pred > threshold) == y_true`, as 0.0 and 1.0, for each value."""
    y_true, y_pred = align_ranks(*as_arrays("binary_accuracy", y_true, y_pred))
    _check_shapes("binary_accuracy", y_true.shape, y_pred.shape)
    return ((y_pred > threshold).astype(y_true.dtype) == y_true).astype(jnp.float32)


def categorical_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`argmax(y_pred) == argmax(y_true)`, as 0.0 and 1.0, for each row."""
    y_true, y_pred = as_arrays("categorical_accuracy", y_true, y_pred)
    _check_shapes("categorical_accuracy", y_true.shape, y_pred.shape)
    return (jnp.argmax(y_true, axis=-1) == jnp.argmax(y_pred, axis=-1)).astype(jnp.float32)


def sparse_categorical_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """`argmax(y_pred) == y_true`, as 0.0 and 1.0, for each class index."""
    y_true, y_pred = as_arrays("sparse_categorical_accuracy", y_true, y_pred)
    y_true = _indices("sparse_categorical_accuracy", y_true, y_pred)
    return (jnp.argmax(y_pred, axis=-1) == y_true).astype(jnp.float32)


def top_k_categorical_accuracy(y_true: ArrayLike, y_pred: ArrayLike, k: int = 5) -> jax.Array:
    """`argmax(y_true) in top_k(y_pred, k)`, as 0.0 and 1.0, for each row."""
    y_true, y_pred = as_arrays("top_k_categorical_accuracy", y_true, y_pred)
    _check_shapes("top_k_categorical_accuracy", y_true.shape, y_pred.shape)
    return _in_top_k(jnp.argmax(y_true, axis=-1), y_pred, k)


def sparse_top_k_categorical_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, k: int = 5, from_sorted_ids: bool = False
) -> jax.Array:
    """`y_true in top_k(y_pred, k)`, as 0.0 and 1.0, for each class index.

    Args:
        y_true: class indices (batch, ...) or (batch, ..., 1).
        y_pred: scores (batch, ..., classes), or, with `from_sorted_ids`, classes from the best downwards.
        k: number of the largest scores that count.
        from_sorted_ids: whether `y_pred` holds classes.
    """
    y_true, y_pred = as_arrays("sparse_top_k_categorical_accuracy", y_true, y_pred)
    y_true = _indices("sparse_top_k_categorical_accuracy", y_true, y_pred)
    if from_sorted_ids:
        return jnp.any(y_true[..., None] == y_pred[..., :k], axis=-1).astype(jnp.float32)
    return _in_top_k(y_true.astype(jnp.int32), y_pred, k)


class Accuracy(FunctionMetric, function=accuracy, direction="up"):
    """Mean of `y_true == y_pred`; `metrics=["accuracy"]` chooses another by the shapes. Arguments as in `Metric`."""


class BinaryAccuracy(FunctionMetric, function=binary_accuracy, direction="up"):
    """Mean of `(y_pred > threshold) == y_true`.

    Args:
        threshold: 0.5 for probabilities, 0 for logits.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "binary_accuracy",
        dtype: DTypeLike | None = None,
        threshold: float = 0.5,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, threshold=threshold)


class CategoricalAccuracy(FunctionMetric, function=categorical_accuracy, direction="up"):
    """Mean of `argmax(y_pred) == argmax(y_true)`, for one-hot targets. Arguments as in `Metric`."""


class SparseCategoricalAccuracy(FunctionMetric, function=sparse_categorical_accuracy, direction="up"):
    """Mean of `argmax(y_pred) == y_true`, for class indices. Arguments as in `Metric`."""


class TopKCategoricalAccuracy(FunctionMetric, function=top_k_categorical_accuracy, direction="up"):
    """Mean of `argmax(y_true) in top_k(y_pred, k)`, for one-hot targets.

    Args:
        k: number of the largest scores that count.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        k: int = 5,
        name: str | None = "top_k_categorical_accuracy",
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, k=k)


class SparseTopKCategoricalAccuracy(FunctionMetric, function=sparse_top_k_categorical_accuracy, direction="up"):
    """Mean of `y_true in top_k(y_pred, k)`, for class indices.

    Args:
        k: number of the largest scores that count.
        from_sorted_ids: whether predictions are classes from the best downwards, instead of scores.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        k: int = 5,
        name: str | None = "sparse_top_k_categorical_accuracy",
        dtype: DTypeLike | None = None,
        from_sorted_ids: bool = False,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, k=k, from_sorted_ids=from_sorted_ids)


def _in_top_k(classes: jax.Array, scores: jax.Array, k: int) -> jax.Array:
    classes = jnp.where(classes < 0, scores.shape[-1], classes)  # out of range instead of counted from the end
    own = jnp.take_along_axis(scores, classes[..., None], axis=-1)
    own = jnp.where(jnp.isnan(own), -jnp.inf, own)
    return (jnp.sum(scores > own, axis=-1) < k).astype(jnp.float32)


def _indices(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Drop a last dim of 1 of class indices."""
    if y_true.ndim == y_pred.ndim and y_true.shape[-1] == 1:
        y_true = jnp.squeeze(y_true, -1)
    _check_shapes(name, y_true.shape, y_pred.shape[:-1])
    return y_true


def _check_shapes(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        summary = f"{name}: targets do not fit the predictions"
        fix = "reshape the targets, or choose the binary, categorical or sparse categorical metric"
        raise ModelError(summary, given=f"y_true of shape {found}, not {expected}", fix=fix)
