"""How well probabilities fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import saving
from keras_dist.losses.arguments import as_arrays
from keras_dist.losses.binary import binary_crossentropy
from keras_dist.losses.categorical import categorical_crossentropy, sparse_categorical_crossentropy
from keras_dist.losses.probabilistic import kl_divergence, poisson
from keras_dist.metrics.accuracy import kind_by_shapes
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.reduction import MeanMetricWrapper


@saving.register_keras_serializable("keras_dist")
def crossentropy_by_shapes(y_true: Any, y_pred: Any) -> jax.Array:
    """What `metrics=["crossentropy"]` means: binary, sparse or categorical, as for "accuracy"."""
    y_true, y_pred = as_arrays("crossentropy", y_true, y_pred)
    return {
        "binary": binary_crossentropy,
        "sparse": sparse_categorical_crossentropy,
        "categorical": categorical_crossentropy,
    }[kind_by_shapes(y_true, y_pred)](y_true, y_pred)


class KLDivergence(MeanMetricWrapper):
    """The mean of the sum over classes of `y_true * log(y_true / y_pred)`.

    Source: `keras.metrics.KLDivergence`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "kl_divergence", dtype: Any = None) -> None:
        super().__init__(kl_divergence, name, dtype)


class Poisson(MeanMetricWrapper):
    """The mean of `y_pred - y_true * log(y_pred)`.

    Source: `keras.metrics.Poisson`.
    """

    _direction = "down"

    def __init__(self, name: str | None = "poisson", dtype: Any = None) -> None:
        super().__init__(poisson, name, dtype)


class BinaryCrossentropy(MeanMetricWrapper):
    """The mean crossentropy of targets 0 and 1.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        from_logits: whether predictions are logits.
        label_smoothing: the fraction that is taken from the label and spread over both.

    Source: `keras.metrics.BinaryCrossentropy`.
    """

    _direction = "down"

    def __init__(
        self,
        name: str | None = "binary_crossentropy",
        dtype: Any = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
    ) -> None:
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing}
        super().__init__(binary_crossentropy, name, dtype, **options)


class CategoricalCrossentropy(MeanMetricWrapper):
    """The mean crossentropy of one-hot targets.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        from_logits: whether predictions are logits.
        label_smoothing: the fraction that is taken from the label and spread over all.
        axis: the dim of classes.

    Source: `keras.metrics.CategoricalCrossentropy`.
    """

    _direction = "down"

    def __init__(
        self,
        name: str | None = "categorical_crossentropy",
        dtype: Any = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
        axis: int = -1,
    ) -> None:
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing, "axis": axis}
        super().__init__(categorical_crossentropy, name, dtype, **options)


class SparseCategoricalCrossentropy(MeanMetricWrapper):
    """The mean crossentropy of class indices.

    Args:
        name: what it is logged as.
        dtype: of the totals.
        from_logits: whether predictions are logits.
        ignore_class: an index whose examples count as 0; with weights they do not count.
        axis: the dim of classes.

    Source: `keras.metrics.SparseCategoricalCrossentropy`.
    """

    _direction = "down"

    def __init__(
        self,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: Any = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        options = {"from_logits": from_logits, "ignore_class": ignore_class, "axis": axis}
        super().__init__(sparse_categorical_crossentropy, name, dtype, **options)
        self.ignore_class = ignore_class

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        if self.ignore_class is not None and sample_weight is not None:
            counts = jnp.asarray(y_true) != self.ignore_class
            counts = counts[..., 0] if counts.ndim == jnp.ndim(y_pred) else counts
            sample_weight = spread(sample_weight, counts.astype(self.dtype)) * counts
        super().update_state(y_true, y_pred, sample_weight)
