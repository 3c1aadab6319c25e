"""Means of functions: errors, correlations, crossentropies and hinge losses; perplexity."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist import losses
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.config.settings import epsilon
from keras_dist.losses.targets import as_arrays, matched
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.metric import Metric
from keras_dist.metrics.reduction import FunctionMetric, Mean, divide_no_nan


def cosine_similarity(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`sum(y_true * y_pred, axis) / (norm(y_true, axis) * norm(y_pred, axis))`, with the sign of the metric."""
    y_true, y_pred = matched("cosine_similarity", y_true, y_pred)
    return jnp.sum(_normalized(y_true, axis) * _normalized(y_pred, axis), axis=axis)


class MeanSquaredError(FunctionMetric, function=losses.mean_squared_error, direction="down"):
    """Mean of `(y_pred - y_true)**2`. Arguments as in `Metric`."""


class MeanAbsoluteError(FunctionMetric, function=losses.mean_absolute_error, direction="down"):
    """Mean of `abs(y_pred - y_true)`. Arguments as in `Metric`."""


class MeanAbsolutePercentageError(FunctionMetric, function=losses.mean_absolute_percentage_error, direction="down"):
    """Mean of `100 * abs(y_pred - y_true) / abs(y_true)` [%]. Arguments as in `Metric`."""


class MeanSquaredLogarithmicError(FunctionMetric, function=losses.mean_squared_logarithmic_error, direction="down"):
    """Mean of `(log(1 + y_pred) - log(1 + y_true))**2`. Arguments as in `Metric`."""


class LogCoshError(FunctionMetric, function=losses.log_cosh, direction="down"):
    """Mean of `log(cosh(y_pred - y_true))`. Arguments as in `Metric`."""

    def __init__(self, name: str | None = "logcosh", dtype: DTypeLike | None = None, mesh: object = None) -> None:
        super().__init__(name, dtype, mesh)


class CosineSimilarity(FunctionMetric, function=cosine_similarity, direction="up"):
    """Mean of `sum(y_true * y_pred, axis) / (norm(y_true, axis) * norm(y_pred, axis))`.

    Args:
        axis: the dim of the vectors.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "cosine_similarity",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, axis=axis)


class RootMeanSquaredError(Mean, direction="down"):
    """`sqrt(mean((y_pred - y_true)**2))` over all examples at once."""

    def __init__(
        self, name: str | None = "root_mean_squared_error", dtype: DTypeLike | None = None, mesh: object = None
    ) -> None:
        super().__init__(name, dtype, mesh)

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        y_true, y_pred = matched("root_mean_squared_error", y_true, y_pred)
        super().update_state(jnp.square((y_pred - y_true).astype(self.dtype)), sample_weight)

    def result(self) -> jax.Array:
        return jnp.sqrt(super().result())


def _normalized(vectors: jax.Array, axis: int) -> jax.Array:
    return vectors / jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(vectors), axis=axis, keepdims=True), 1e-12))


def pearson_correlation(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`cov(y_true, y_pred) / (std(y_true) * std(y_pred))` along `axis`, from -1 to 1."""
    y_true, y_pred = (_standardized(values, axis) for values in matched("pearson_correlation", y_true, y_pred))
    return jnp.mean(y_true * y_pred, axis=axis)


def concordance_correlation(y_true: ArrayLike, y_pred: ArrayLike, axis: int = -1) -> jax.Array:
    """`2 * cov(y_true, y_pred) / (var(y_true) + var(y_pred) + (mean(y_true) - mean(y_pred))**2)`, from -1 to 1."""
    y_true, y_pred = matched("concordance_correlation", y_true, y_pred)
    true_mean, pred_mean = (jnp.mean(values, axis=axis, keepdims=True) for values in (y_true, y_pred))
    spread = jnp.var(y_true, axis=axis) + jnp.var(y_pred, axis=axis)
    distance = jnp.square(true_mean - pred_mean).squeeze(axis)
    covariance = jnp.mean((y_true - pred_mean) * (y_pred - pred_mean), axis=axis)
    return 2 * covariance / (spread + distance + epsilon())


class PearsonCorrelation(FunctionMetric, function=pearson_correlation, direction="up"):
    """Mean of `cov(y_true, y_pred) / (std(y_true) * std(y_pred))` along `axis`.

    Args:
        axis: the dim along which values are correlated.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "pearson_correlation",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, axis=axis)


class ConcordanceCorrelation(FunctionMetric, function=concordance_correlation, direction="up"):
    """Mean of `2 * cov(y_true, y_pred) / (var(y_true) + var(y_pred) + (mean(y_true) - mean(y_pred))**2)` along `axis`.

    Args:
        axis: the dim along which values are compared.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "concordance_correlation",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, axis=axis)


def _standardized(values: jax.Array, axis: int) -> jax.Array:
    centred = values - jnp.mean(values, axis=axis, keepdims=True)
    return centred / jnp.std(centred, axis=axis, keepdims=True)


class KLDivergence(FunctionMetric, function=losses.kl_divergence, direction="down"):
    """Mean of `sum(y_true * log(y_true / y_pred), axis=-1)`. Arguments as in `Metric`."""


class Poisson(FunctionMetric, function=losses.poisson, direction="down"):
    """Mean of `y_pred - y_true * log(y_pred)`. Arguments as in `Metric`."""


class BinaryCrossentropy(FunctionMetric, function=losses.binary_crossentropy, direction="down"):
    """Mean of `-(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred))`.

    Args:
        from_logits: whether predictions are logits.
        label_smoothing: fraction by which targets are moved towards 0.5, from 0 to 1.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "binary_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, from_logits=from_logits, label_smoothing=label_smoothing)


class CategoricalCrossentropy(FunctionMetric, function=losses.categorical_crossentropy, direction="down"):
    """Mean of `-sum(y_true * log(y_pred), axis)` for one-hot targets.

    Args:
        from_logits: whether predictions are logits.
        label_smoothing: the share of each target that is spread over all classes, from 0 to 1.
        axis: the dim of the classes.
        name, dtype, mesh: as in `Metric`.
    """

    def __init__(
        self,
        name: str | None = "categorical_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, from_logits=from_logits, label_smoothing=label_smoothing, axis=axis)


class SparseCategoricalCrossentropy(FunctionMetric, function=losses.sparse_categorical_crossentropy, direction="down"):
    """Mean of `-log(y_pred[y_true])` for class indices.

    Args:
        from_logits: whether predictions are logits.
        ignore_class: a class index whose values are 0; with weights they are excluded from the mean.
        axis: the dim of the classes.
        name, dtype, mesh: as in `Metric`.
    """

    ignore_class: int | None

    def __init__(
        self,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        mesh: object = None,
    ) -> None:
        super().__init__(name, dtype, mesh, from_logits=from_logits, ignore_class=ignore_class, axis=axis)

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike | None = None) -> None:
        if self.ignore_class is not None and sample_weight is not None:
            counts = jnp.asarray(y_true) != self.ignore_class
            counts = counts[..., 0] if counts.ndim == jnp.ndim(y_pred) else counts
            sample_weight = spread(sample_weight, counts.astype(self.dtype)) * counts
        super().update_state(y_true, y_pred, sample_weight)


class Hinge(FunctionMetric, function=losses.hinge, direction="down"):
    """Mean of `max(1 - y_true * y_pred, 0)`; targets of 0 and 1 count as -1 and 1. Arguments as in `Metric`."""


class SquaredHinge(FunctionMetric, function=losses.squared_hinge, direction="down"):
    """Mean of `max(1 - y_true * y_pred, 0)**2`; targets of 0 and 1 count as -1 and 1. Arguments as in `Metric`."""


class CategoricalHinge(FunctionMetric, function=losses.categorical_hinge, direction="down"):
    """Mean of `max(1 + max((1 - y_true) * y_pred) - sum(y_true * y_pred), 0)` for one-hot targets.

    Arguments as in `Metric`.
    """


class Perplexity(Metric, direction="down"):
    """`exp(mean(-log(y_pred[y_true])))` over all tokens.

    Args:
        from_logits: whether predictions are logits.
        mask_token_id: targets with this value do not count.
        dtype, name, mesh: as in `Metric`.

    Source: `keras_hub.metrics.Perplexity`.
    """

    def __init__(
        self,
        from_logits: bool = False,
        mask_token_id: int | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = "perplexity",
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.from_logits = from_logits
        self.mask_token_id = mask_token_id
        self.aggregate_crossentropy = self.add_variable((), dtype=self.dtype, name="aggregate_crossentropy")
        self.number_of_samples = self.add_variable((), dtype=self.dtype, name="number_of_samples")

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of tokens (batch, length) and of probabilities or logits (batch, length, vocabulary)."""
        y_true, y_pred = as_arrays("Perplexity", y_true, y_pred)
        values = losses.sparse_categorical_crossentropy(
            y_true, y_pred.astype(self.dtype), self.from_logits, ignore_class=self.mask_token_id
        )
        weight = jnp.ones_like(values) if sample_weight is None else spread(sample_weight, values)
        if self.mask_token_id is not None:
            weight = jnp.where(y_true.reshape(values.shape) == self.mask_token_id, 0, weight)
        self.aggregate_crossentropy.assign_add(jnp.sum(values * weight))
        self.number_of_samples.assign_add(jnp.sum(weight))

    def result(self) -> jax.Array:
        """Return the perplexity so far; 0.0 without values."""
        count = self.number_of_samples.value
        mean = divide_no_nan(self.aggregate_crossentropy.value, count)
        return jnp.where(count == 0, 0.0, jnp.exp(mean))
