"""Intersection over union (IoU) of predicted and true classes."""

# pyright: reportUnknownMemberType=false

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.metric import Metric


class IoU(Metric, direction="up"):
    """Mean over some classes of `TP / (TP + FP + FN)`.

    The mean excludes classes without targets and predictions.

    Args:
        num_classes: number of classes.
        target_class_ids: classes over which the mean is taken.
        name, mesh: as in `Metric`.
        dtype: dtype of the counts; int32 by default, which drops fractions of weights.
        ignore_class: class whose targets are ignored.
        sparse_y_true: whether targets are class indices instead of one-hot rows.
        sparse_y_pred: whether predictions are class indices instead of scores.
        axis: the dim of the classes in one-hot rows and scores.

    Raises:
        ModelError: a class is out of range.
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype or "int32", mesh=mesh)
        if not all(0 <= target < num_classes for target in target_class_ids):
            summary = f"`target_class_ids` must be classes from 0 to {num_classes - 1}"
            given = f"target_class_ids={list(target_class_ids)}, num_classes={num_classes}"
            raise ModelError(summary, given=given, fix="correct the class, or num_classes")
        self.num_classes = num_classes
        self.target_class_ids = list(target_class_ids)
        self.ignore_class = ignore_class
        self.sparse_y_true = sparse_y_true
        self.sparse_y_pred = sparse_y_pred
        self.axis = axis
        shape = (num_classes, num_classes)
        self.total_cm = self.add_variable(shape, dtype=self.dtype, name="total_confusion_matrix")

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of class indices, or of one-hot rows and scores; classes out of range do not count.

        Weights have a shape that the predictions begin with, or are one flat array with a weight for each.
        """
        true = jnp.asarray(y_true if self.sparse_y_true else jnp.argmax(jnp.asarray(y_true), axis=self.axis))
        found = jnp.asarray(y_pred if self.sparse_y_pred else jnp.argmax(jnp.asarray(y_pred), axis=self.axis))
        weight = self._weights(sample_weight, found)
        true, found = true.astype(jnp.int32).reshape(-1), found.astype(jnp.int32).reshape(-1)
        if true.shape != found.shape:
            summary = f"{type(self).__name__}: targets do not fit the predictions"
            fix = "for one-hot targets pass sparse_y_true=False, for scores sparse_y_pred=False"
            raise ModelError(summary, given=f"{true.size} targets, {found.size} predictions", fix=fix)
        counts = (true >= 0) & (true < self.num_classes) & (found >= 0) & (found < self.num_classes)
        if self.ignore_class is not None:
            counts &= true != self.ignore_class
        weight = jnp.where(counts, weight.reshape(-1), 0)
        cells = jnp.where(counts, true, 0), jnp.where(counts, found, 0)
        self.total_cm.assign(jnp.asarray(self.total_cm.value).at[cells].add(weight))

    def result(self) -> jax.Array:
        """Return the mean so far; 0.0 without values."""
        matrix = jnp.asarray(self.total_cm.value)
        targets = jnp.asarray(self.target_class_ids)
        true = jnp.diag(matrix)
        union = (jnp.sum(matrix, axis=0) + jnp.sum(matrix, axis=1) - true)[targets].astype(jnp.float32)
        occurs = union > 1e-9
        overlap = jnp.where(occurs, true[targets].astype(jnp.float32) / (union + epsilon()), 0.0)
        return jnp.sum(overlap) / (jnp.sum(occurs) + epsilon())

    def _weights(self, sample_weight: ArrayLike | None, found: jax.Array) -> jax.Array:
        """A weight for each prediction."""
        ones = jnp.ones(found.shape, self.dtype)
        if sample_weight is None:
            return ones
        weight = jnp.asarray(sample_weight)
        if jnp.issubdtype(weight.dtype, jnp.floating) and jnp.issubdtype(jnp.dtype(self.dtype), jnp.integer):
            warn(
                f"{type(self).__name__}: weights of dtype {weight.dtype} lose their fractions, for the metric counts "
                f'in {self.dtype}. Pass {type(self).__name__}(..., dtype="float32") to keep them.'
            )
        return weight.astype(self.dtype) if weight.shape == (found.size,) else spread(weight, ones)


class BinaryIoU(IoU):
    """Mean of `TP / (TP + FP + FN)` of the classes `y_pred < threshold` and `y_pred >= threshold`.

    Args:
        target_class_ids: (0, 1) for the mean over both, (1,) for the foreground alone.
        threshold: from which a score counts as 1.
        name, dtype, mesh: as in `IoU`.
    """

    def __init__(
        self,
        target_class_ids: Sequence[int] = (0, 1),
        threshold: float = 0.5,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(2, target_class_ids, name, dtype, mesh=mesh)
        self.threshold = threshold

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of targets 0 and 1 and of scores."""
        super().update_state(y_true, jnp.asarray(y_pred, jnp.float32) >= self.threshold, sample_weight)


class MeanIoU(IoU):
    """Mean of `TP / (TP + FP + FN)` over all classes. Arguments as in `IoU`."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        classes = range(num_classes)
        super().__init__(num_classes, classes, name, dtype, ignore_class, sparse_y_true, sparse_y_pred, axis, mesh)


class OneHotIoU(IoU):
    """Mean over some classes of `TP / (TP + FP + FN)`, for one-hot targets. Arguments as in `IoU`."""

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(num_classes, target_class_ids, name, dtype, ignore_class, False, sparse_y_pred, axis, mesh)


class OneHotMeanIoU(MeanIoU):
    """Mean over all classes of `TP / (TP + FP + FN)`, for one-hot targets. Arguments as in `IoU`."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(num_classes, name, dtype, ignore_class, False, sparse_y_pred, axis, mesh)
