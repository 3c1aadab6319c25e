"""`Mean` and `Sum` of values, and the mean of what a function of `(y_true, y_pred)` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import _ranges
from keras_dist.errors import ModelError
from keras_dist.losses import align_ranks
from keras_dist.metrics.metric import Metric


class Sum(Metric):
    """The sum of values, each times its weight.

    Args:
        name: what it is logged as.
        dtype: of the total.

    Differs from Keras: values of weight 0 may be NaN or infinite.

    Source: `keras.metrics.Sum`.
    """

    def __init__(self, name: str | None = "sum", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable((), "zeros", self.dtype, name="total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values (batch, ...), with a weight for each example or each value."""
        values, _ = weighted_by_example(values, sample_weight, jnp.sum, self.dtype)
        self.total.assign_add(jnp.sum(values))

    def result(self) -> Any:
        """The sum so far."""
        return jnp.asarray(self.total)


class Mean(Metric):
    """The weighted mean of values: the sum of values times weights over the sum of weights; 0.0 of nothing.

    Every example counts alike, however many values it has. Totals are float32: adding a batch rounds by at most one
    part in 2**24, so that counts are exact up to 2**24 batches of one size that is a power of two.

    Args:
        name: what it is logged as.
        dtype: of total and count.

    Differs from Keras: values of weight 0 may be NaN or infinite.

    Source: `keras.metrics.Mean`.
    """

    def __init__(self, name: str | None = "mean", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable((), "zeros", self.dtype, name="total")
        self.count = self.add_variable((), "zeros", self.dtype, name="count")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values (batch, ...), with a weight for each example or each value."""
        values, weight = weighted_by_example(values, sample_weight, jnp.mean, self.dtype)
        self.total.assign_add(jnp.sum(values))
        self.count.assign_add(jnp.size(values) if weight is None else jnp.sum(weight))

    def result(self) -> Any:
        """The mean so far."""
        return divide_no_nan(self.total.value, self.count.value)


class MeanMetricWrapper(Mean):
    """The mean of what a function gives.

    Args:
        fn: `fn(y_true, y_pred, **kwargs)` that returns a value for each example, or the mean over a batch, which then
            counts as often as the batch has rows.
        name: what it is logged as; by default `mean_metric_wrapper`.
        dtype: of total and count.
        **kwargs: for `fn`.

    Source: `keras.metrics.MeanMetricWrapper`. There a scalar counts once, and the result depends on the batch sizes.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    @property
    def needs_targets(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it cannot do without `y`: functions of users may."""
        return getattr(self._fn, "__module__", "").startswith("keras_dist.")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add a batch."""
        with _ranges.counting(sample_weight):
            values = self._fn(y_true, y_pred, **self._fn_kwargs)
        rows = [jnp.shape(leaf)[0] for leaf in jax.tree.leaves(y_pred) if jnp.ndim(leaf)]
        if jnp.ndim(values) == 0 and rows:
            if sample_weight is not None:
                raise ModelError(
                    f"metric {self.name!r}: `sample_weight` does not fit",
                    given=f"sample_weight of shape {jnp.shape(sample_weight)}, a function that returns a scalar",
                    expected="a function with a value for each example",
                    fix="return the values instead of their mean, or pass it in metrics= instead of weighted_metrics=",
                )
            sample_weight = rows[0]
        elif jnp.ndim(values):
            sample_weight = self._masked(sample_weight, getattr(y_pred, "_keras_mask", None))
        super().update_state(values, sample_weight)

    def _masked(self, sample_weight: Any, mask: Any) -> Any:
        """Weights that are 0 where an eager layer has masked the predictions."""
        if mask is None:
            return sample_weight
        counts = jnp.asarray(mask, self.dtype)
        weight = jnp.asarray(1 if sample_weight is None else sample_weight, self.dtype)
        return weight.reshape(weight.shape + (1,) * (counts.ndim - weight.ndim)) * counts

    def weighs(self, y_true: Any, y_pred: Any) -> bool:
        """Whether the function gives more than one number, which each example would share."""
        with _ranges.counting(False):
            return super().weighs(y_true, y_pred) and jnp.ndim(self._fn(y_true, y_pred, **self._fn_kwargs)) > 0


def weighted_by_example(
    values: Any, sample_weight: Any, reduce: Callable[..., jax.Array], dtype: Any
) -> tuple[jax.Array, jax.Array | None]:
    """One value for each example, times its weight, and the weights.

    Args:
        values: (batch, ...).
        sample_weight: of a shape that `values` begins with, or None.
        reduce: `jnp.mean` or `jnp.sum`, over all dims but the first.
        dtype: of what comes back.

    Source: `keras.src.metrics.reduction_metrics.reduce_to_samplewise_values`.
    """
    values, weight = jnp.asarray(values, dtype), None
    if sample_weight is not None:
        values, weight = align_ranks(values, jnp.asarray(sample_weight, dtype))
        values = reduce(values, axis=tuple(range(weight.ndim, values.ndim)))
        weight = jnp.broadcast_to(weight, values.shape)
        values = jnp.where(weight == 0, 0, values * weight)  # what does not count may be infinite
        weight = reduce(weight, axis=tuple(range(1, weight.ndim)))
    return reduce(values, axis=tuple(range(1, values.ndim))), weight


def divide_no_nan(numerator: Any, denominator: Any) -> jax.Array:
    """The quotient; 0 where the denominator is 0."""
    is_zero = jnp.equal(denominator, 0)
    return jnp.where(is_zero, 0.0, jnp.divide(numerator, jnp.where(is_zero, 1, denominator)))
