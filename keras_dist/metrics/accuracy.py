"""How often predictions are right."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import saving
from keras_dist.errors import ModelError
from keras_dist.losses.arguments import align_ranks, as_arrays
from keras_dist.metrics.reduction import MeanMetricWrapper


def accuracy(y_true: Any, y_pred: Any) -> jax.Array:
    """Whether predictions equal targets, as 0.0 and 1.0, one for each value."""
    y_true, y_pred = align_ranks(*as_arrays("accuracy", y_true, y_pred))
    _check_shapes("accuracy", y_true.shape, y_pred.shape)
    return (y_true == y_pred).astype(jnp.float32)


@saving.register_keras_serializable("keras_dist")
def accuracy_by_shapes(y_true: Any, y_pred: Any) -> jax.Array:
    """What `metrics=["accuracy"]` means: binary for one score an example, sparse for class indices, else categorical.

    Args:
        y_true: class indices (batch, ...) or (batch, ..., 1), one-hot rows (batch, ..., classes), or, for one output, 0
            and 1.
        y_pred: scores (batch, ..., classes), or one probability for each example (batch,) or (batch, ..., 1).

    Source: `keras.src.trainers.compile_utils.get_metric`.
    """
    y_true, y_pred = as_arrays("accuracy", y_true, y_pred)
    return {"binary": binary_accuracy, "sparse": sparse_categorical_accuracy, "categorical": categorical_accuracy}[
        kind_by_shapes(y_true, y_pred)
    ](y_true, y_pred)


def kind_by_shapes(y_true: Any, y_pred: Any) -> str:
    """`"binary"`, `"sparse"` or `"categorical"`: what targets and scores of these shapes are."""
    if y_pred.ndim < 2 or y_pred.shape[-1] == 1:
        return "binary"
    return "sparse" if y_true.ndim < y_pred.ndim or y_true.shape[-1] == 1 else "categorical"


def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> jax.Array:
    """Whether `y_pred > threshold` is `y_true`, as 0.0 and 1.0, one for each value.

    Source: `keras.metrics.binary_accuracy`.
    """
    y_true, y_pred = align_ranks(*as_arrays("binary_accuracy", y_true, y_pred))
    _check_shapes("binary_accuracy", y_true.shape, y_pred.shape)
    return ((y_pred > threshold).astype(y_true.dtype) == y_true).astype(jnp.float32)


def categorical_accuracy(y_true: Any, y_pred: Any) -> jax.Array:
    """Whether the largest score is where the one-hot row has its 1, as 0.0 and 1.0, for each row.

    Source: `keras.metrics.categorical_accuracy`.
    """
    y_true, y_pred = as_arrays("categorical_accuracy", y_true, y_pred)
    _check_shapes("categorical_accuracy", y_true.shape, y_pred.shape)
    return (jnp.argmax(y_true, axis=-1) == jnp.argmax(y_pred, axis=-1)).astype(jnp.float32)


def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> jax.Array:
    """Whether the largest score is that of the class `y_true`, as 0.0 and 1.0, for each class index.

    Source: `keras.metrics.sparse_categorical_accuracy`.
    """
    y_true, y_pred = as_arrays("sparse_categorical_accuracy", y_true, y_pred)
    y_true = _indices("sparse_categorical_accuracy", y_true, y_pred)
    return (jnp.argmax(y_pred, axis=-1) == y_true).astype(jnp.float32)


def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> jax.Array:
    """Whether the class of the one-hot row is among the `k` largest scores, as 0.0 and 1.0, for each row.

    Source: `keras.metrics.top_k_categorical_accuracy`.
    """
    y_true, y_pred = as_arrays("top_k_categorical_accuracy", y_true, y_pred)
    _check_shapes("top_k_categorical_accuracy", y_true.shape, y_pred.shape)
    return _in_top_k(jnp.argmax(y_true, axis=-1), y_pred, k)


def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5, from_sorted_ids: bool = False) -> jax.Array:
    """Whether the class `y_true` is among the `k` largest scores, as 0.0 and 1.0, for each class index.

    Args:
        y_true: class indices (batch, ...) or (batch, ..., 1).
        y_pred: scores (batch, ..., classes), or, with `from_sorted_ids`, classes from the best downwards.
        k: how many may be as large.
        from_sorted_ids: whether `y_pred` holds classes.

    Source: `keras.metrics.sparse_top_k_categorical_accuracy`.
    """
    y_true, y_pred = as_arrays("sparse_top_k_categorical_accuracy", y_true, y_pred)
    y_true = _indices("sparse_top_k_categorical_accuracy", y_true, y_pred)
    if from_sorted_ids:
        return jnp.any(y_true[..., None] == y_pred[..., :k], axis=-1).astype(jnp.float32)
    return _in_top_k(y_true.astype(jnp.int32), y_pred, k)


class Accuracy(MeanMetricWrapper):
    """How often predictions equal targets.

    `metrics=["accuracy"]` is another: binary, sparse or categorical accuracy, by the shapes.

    Source: `keras.metrics.Accuracy`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "accuracy", dtype: Any = None) -> None:
        super().__init__(accuracy, name, dtype)


class BinaryAccuracy(MeanMetricWrapper):
    """How often `y_pred > threshold` is `y_true`.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        threshold: 0.5 for probabilities, 0 for logits.

    Source: `keras.metrics.BinaryAccuracy`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "binary_accuracy", dtype: Any = None, threshold: float = 0.5) -> None:
        super().__init__(binary_accuracy, name, dtype, threshold=threshold)


class CategoricalAccuracy(MeanMetricWrapper):
    """How often the largest score is that of the one-hot target.

    Source: `keras.metrics.CategoricalAccuracy`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(categorical_accuracy, name, dtype)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """How often the largest score is that of the class index.

    Source: `keras.metrics.SparseCategoricalAccuracy`.
    """

    _direction = "up"

    def __init__(self, name: str | None = "sparse_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(sparse_categorical_accuracy, name, dtype)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """How often the one-hot target is among the `k` largest scores.

    Source: `keras.metrics.TopKCategoricalAccuracy`.
    """

    _direction = "up"

    def __init__(self, k: int = 5, name: str | None = "top_k_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(top_k_categorical_accuracy, name, dtype, k=k)
        self.k = k


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """How often the class index is among the `k` largest scores.

    Args:
        k: how many may be as large.
        name: what it is logged as.
        dtype: of the totals.
        from_sorted_ids: whether predictions are classes, from the best downwards, instead of scores.

    Source: `keras.metrics.SparseTopKCategoricalAccuracy`.
    """

    _direction = "up"

    def __init__(
        self,
        k: int = 5,
        name: str | None = "sparse_top_k_categorical_accuracy",
        dtype: Any = None,
        from_sorted_ids: bool = False,
    ) -> None:
        super().__init__(sparse_top_k_categorical_accuracy, name, dtype, k=k, from_sorted_ids=from_sorted_ids)
        self.k = k
        self.from_sorted_ids = from_sorted_ids


def _in_top_k(classes: jax.Array, scores: jax.Array, k: int) -> jax.Array:
    classes = jnp.where(classes < 0, scores.shape[-1], classes)  # no class, and not counted from the end
    own = jnp.take_along_axis(scores, classes[..., None], axis=-1)
    own = jnp.where(jnp.isnan(own), -jnp.inf, own)
    return (jnp.sum(scores > own, axis=-1) < k).astype(jnp.float32)


def _indices(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Class indices without a last dim of 1."""
    if y_true.ndim == y_pred.ndim and y_true.shape[-1] == 1:
        y_true = jnp.squeeze(y_true, -1)
    _check_shapes(name, y_true.shape, y_pred.shape[:-1])
    return y_true


def _check_shapes(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ModelError(
            f"{name}: targets do not fit the predictions",
            given=f"y_true of shape {found}",
            expected=f"shape {expected}",
            fix="reshape the targets, or choose the metric for such targets: binary, categorical or sparse categorical",
        )
