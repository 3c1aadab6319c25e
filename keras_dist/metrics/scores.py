"""F scores, the coefficient of determination, and intersection over union (IoU)."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_int, check_number, check_option, check_optional
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError
from keras_dist.losses.targets import align_ranks, as_arrays
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.metric import Metric

_MOST_CLASSES = 46340  # a confusion matrix of 2**31 entries
_COUNTS = ("true_positives", "false_positives", "false_negatives", "intermediate_weights")


class FBetaScore(Metric, direction="up"):
    """`(1 + beta**2) * precision * recall / (beta**2 * precision + recall)`.

    Args:
        average: None for a value for each class, `"micro"` (over all predictions), `"macro"` (mean over classes) or
            `"weighted"` (mean weighted by the number of targets of each class).
        beta: the weight of recall.
        threshold: scores above it are positive; by default the largest score of each row is.
        name, dtype, mesh: as in `Metric`.

    Raises:
        ModelError: an argument is invalid.
    """

    def __init__(
        self,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str | None = "fbeta_score",
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.average = check_option("average", average, (None, "micro", "weighted", "macro"))
        self.axis = None if self.average == "micro" else 0
        self.beta = check_number("beta", beta, above=0)
        self.threshold = check_optional(check_number, "threshold", threshold, above=0, high=1)
        self._built = False

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of targets 0 and 1 and of scores (batch, classes), with weights (batch,)."""
        y_true, y_pred = as_arrays(type(self).__name__, y_true, y_pred)
        if y_pred.ndim != 2 or y_true.shape != y_pred.shape:
            summary = f"{type(self).__name__}: targets and predictions must have one shape (batch, classes)"
            fix = "turn class indices into one-hot rows: jax.nn.one_hot(y_true, classes)"
            raise ModelError(summary, given=f"y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}", fix=fix)
        if not self._built:
            shape = () if self.average == "micro" else y_pred.shape[1:]
            for name in _COUNTS:
                setattr(self, name, self.add_variable(shape, dtype=self.dtype, name=name))
            self._built = True
        if self.threshold is None:
            is_positive = (y_pred >= jnp.max(y_pred, axis=-1, keepdims=True)) & (jnp.abs(y_pred) > 1e-9)
        else:
            is_positive = y_pred > self.threshold
        true, positive = y_true.astype(self.dtype), is_positive.astype(self.dtype)
        weight = 1 if sample_weight is None else self._weights(sample_weight, len(y_pred))
        found = (positive * true, positive * (1 - true), (1 - positive) * true, true)
        for variable, values in zip(self.variables, found, strict=True):
            variable.assign_add(jnp.sum(values * weight, axis=self.axis))

    def _weights(self, sample_weight: ArrayLike, rows: int) -> jax.Array:
        weight = jnp.asarray(sample_weight, self.dtype)
        if weight.shape not in ((), (1,), (rows,), (rows, 1)):
            summary = f"{type(self).__name__}: `sample_weight` must have a weight for each row, shape ({rows},)"
            fix = "reduce the weights to one for each example"
            raise ModelError(summary, given=f"sample_weight of shape {weight.shape}", fix=fix)
        return weight.reshape(-1, 1)

    def result(self) -> jax.Array:
        """Return the score so far: a scalar, or one for each class; 0.0 without values."""
        if not self._built:
            return jnp.zeros(())
        true, false, missed, weights = (jnp.asarray(variable.value) for variable in self.variables)
        precision, recall = true / (true + false + epsilon()), true / (true + missed + epsilon())
        beta_squared = self.beta**2
        score = (1 + beta_squared) * precision * recall / (beta_squared * precision + recall + epsilon())
        if self.average == "weighted":
            return jnp.sum(score * weights / (jnp.sum(weights) + epsilon()))
        return score if self.average is None else jnp.mean(score)


class F1Score(FBetaScore):
    """`2 * precision * recall / (precision + recall)`. Arguments as in `FBetaScore`."""

    def __init__(
        self,
        average: str | None = None,
        threshold: float | None = None,
        name: str | None = "f1_score",
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype, mesh)


class R2Score(Metric, direction="up"):
    """`1 - sum((y_true - y_pred)**2) / sum((y_true - mean(y_true))**2)`.

    Args:
        class_aggregation: `"uniform_average"` or `"variance_weighted_average"` over outputs; None for a value for each.
        num_regressors: number of inputs, for the adjusted score; 0 for the plain one.
        name, dtype, mesh: as in `Metric`.

    Raises:
        ModelError: an argument is invalid.
    """

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        options = (None, "uniform_average", "variance_weighted_average")
        self.class_aggregation = check_option("class_aggregation", class_aggregation, options)
        self.num_regressors = check_int("num_regressors", num_regressors, 0)
        self.num_samples = self.add_variable((), name="num_samples")
        self._built = False

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of targets and predictions (batch, outputs), with weights (batch,) or (batch, outputs)."""
        y_true, y_pred = align_ranks(*as_arrays("R2Score", y_true, y_pred))
        if y_true.ndim != 2 or y_true.shape != y_pred.shape:
            summary = "R2Score: targets and predictions must have one shape (batch, outputs)"
            given = f"y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}"
            raise ModelError(summary, given=given, fix="reshape them; one output is a last dim of 1")
        if not self._built:
            names = ("squared_sum", "sum", "residual", "count")
            self.squared_sum, self.sum, self.total_mse, self.count = (
                self.add_variable(y_pred.shape[1:], name=name) for name in names
            )
            self._built = True
        y_true, y_pred = y_true.astype(self.dtype), y_pred.astype(self.dtype)
        weight = jnp.asarray(1 if sample_weight is None else sample_weight, self.dtype)
        weight = jnp.broadcast_to(weight[:, None] if weight.ndim == 1 else weight, y_true.shape)
        weighted = y_true * weight
        self.sum.assign_add(jnp.sum(weighted, axis=0))
        self.squared_sum.assign_add(jnp.sum(y_true * weighted, axis=0))
        self.total_mse.assign_add(jnp.sum((y_true - y_pred) ** 2 * weight, axis=0))
        self.count.assign_add(jnp.sum(weight, axis=0))
        self.num_samples.assign_add(y_true.size)

    def result(self) -> jax.Array:
        """Return the score so far; NaN without values."""
        if not self._built:
            return jnp.asarray(jnp.nan)
        total = self.squared_sum - self.sum * (self.sum / self.count)
        scores = 1 - self.total_mse / total
        scores = jnp.where(jnp.isinf(scores), 0.0, scores)
        if self.class_aggregation == "uniform_average":
            scores = jnp.mean(scores)
        elif self.class_aggregation == "variance_weighted_average":
            scores = jnp.sum(total * scores) / jnp.sum(total)
        return self._adjusted(scores) if self.num_regressors else scores

    def _adjusted(self, score: jax.Array) -> jax.Array:
        spare = self.num_samples.value - self.num_regressors - 1
        if spare > 0:
            return 1 - (1 - score) * (self.num_samples.value - 1) / spare
        warn(
            f"R2Score: {self.num_regressors} regressors are too many for {int(self.num_samples)} values to adjust the "
            "score: it is the plain one"
        )
        return score


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
        num_classes = check_int("num_classes", num_classes, high=_MOST_CLASSES)
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
