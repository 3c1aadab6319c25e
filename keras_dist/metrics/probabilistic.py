"""Means of crossentropies, Kullback-Leibler divergence and Poisson loss."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.losses.binary import binary_crossentropy
from keras_dist.losses.categorical import categorical_crossentropy, sparse_categorical_crossentropy
from keras_dist.losses.probabilistic import kl_divergence, poisson
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.reduction import FunctionMetric


class KLDivergence(FunctionMetric, function=kl_divergence, direction="down"):
    """Mean of `sum(y_true * log(y_true / y_pred), axis=-1)`. Arguments as in `Metric`."""


class Poisson(FunctionMetric, function=poisson, direction="down"):
    """Mean of `y_pred - y_true * log(y_pred)`. Arguments as in `Metric`."""


class BinaryCrossentropy(FunctionMetric, function=binary_crossentropy, direction="down"):
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


class CategoricalCrossentropy(FunctionMetric, function=categorical_crossentropy, direction="down"):
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


class SparseCategoricalCrossentropy(FunctionMetric, function=sparse_categorical_crossentropy, direction="down"):
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
        """Add a batch."""
        if self.ignore_class is not None and sample_weight is not None:
            counts = jnp.asarray(y_true) != self.ignore_class
            counts = counts[..., 0] if counts.ndim == jnp.ndim(y_pred) else counts
            sample_weight = spread(sample_weight, counts.astype(self.dtype)) * counts
        super().update_state(y_true, y_pred, sample_weight)
