"""`Sum` and `Mean` of values, and means of the values of functions of `(y_true, y_pred)`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from keras_dist._support import integer_checks
from keras_dist._support.raw_errors import explained
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.errors import ModelError
from keras_dist.losses.targets import align_ranks
from keras_dist.metrics.metric import Metric


class Sum(Metric):
    """`sum(values * weights)`.

    Args:
        name, dtype, mesh: as in `Metric`.

    Differs from Keras: values of weight 0 may be NaN or infinite.
    """

    def __init__(self, name: str | None = "sum", dtype: DTypeLike | None = None, mesh: object = None) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.total = self.add_variable((), "zeros", self.dtype, name="total")

    def update_state(self, values: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add values (batch, ...), with a weight for each example or each value."""
        values, _ = weighted_by_example(values, sample_weight, jnp.sum, self.dtype)
        self.total.assign_add(jnp.sum(values))

    def result(self) -> jax.Array:
        return jnp.asarray(self.total)


class Mean(Metric):
    """`sum(values * weights) / sum(weights)`; 0.0 without values.

    Each example has the same weight, whatever its number of values. Totals are float32: adding a batch rounds by at
    most one part in 2**24, so that counts are exact up to 2**24 batches of a power of two.

    Args:
        name, dtype, mesh: as in `Metric`.

    Differs from Keras: values of weight 0 may be NaN or infinite.
    """

    def __init__(self, name: str | None = "mean", dtype: DTypeLike | None = None, mesh: object = None) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.total = self.add_variable((), "zeros", self.dtype, name="total")
        self.count = self.add_variable((), "zeros", self.dtype, name="count")

    def update_state(self, values: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add values (batch, ...), with a weight for each example or each value."""
        values, weight = weighted_by_example(values, sample_weight, jnp.mean, self.dtype)
        self.total.assign_add(jnp.sum(values))
        self.count.assign_add(jnp.size(values) if weight is None else jnp.sum(weight))

    def result(self) -> jax.Array:
        return divide_no_nan(self.total.value, self.count.value)


class MeanMetricWrapper(Mean):
    """Mean of `fn(y_true, y_pred, **kwargs)`.

    Args:
        fn: returns a value for each example, or the mean over a batch, which is weighted by the number of rows.
        name: name in logs; by default `mean_metric_wrapper`.
        dtype: dtype of the totals.
        **kwargs: arguments of `fn`.

    Differs from Keras: there a scalar counts once, and the result depends on the batch sizes.
    """

    def __init__(
        self, fn: Callable[..., ArrayLike], name: str | None = None, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    @property
    def needs_targets(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether targets must be given; functions of users may ignore them."""
        return getattr(self._fn, "__module__", "").startswith("keras_dist.")

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        with integer_checks.counting(sample_weight):
            values = self._fn(y_true, y_pred, **self._fn_kwargs)
        rows = [jnp.shape(leaf)[0] for leaf in jax.tree.leaves(y_pred) if jnp.ndim(leaf)]
        if jnp.ndim(values) == 0 and rows:
            if sample_weight is not None:
                given = f"sample_weight of shape {jnp.shape(sample_weight)}, a function that returns a scalar"
                fix = "return the values instead of their mean, or pass it in metrics= instead of weighted_metrics="
                raise ModelError(f"metric {self.name!r}: `sample_weight` does not fit", given=given, fix=fix)
            sample_weight = rows[0]
        elif jnp.ndim(values):
            sample_weight = self._masked(sample_weight, getattr(y_pred, "_keras_mask", None))
        super().update_state(values, sample_weight)

    def _masked(self, sample_weight: ArrayLike | None, mask: ArrayLike | None) -> ArrayLike | None:
        """Set weights to 0 where an eager layer has masked the predictions."""
        if mask is None:
            return sample_weight
        counts = jnp.asarray(mask, self.dtype)
        weight = jnp.asarray(1 if sample_weight is None else sample_weight, self.dtype)
        return weight.reshape(weight.shape + (1,) * (counts.ndim - weight.ndim)) * counts

    def weighs(self, y_true: PyTree, y_pred: PyTree) -> bool:
        """Whether the function returns more than one number for a batch."""
        with integer_checks.counting(False):
            return super().weighs(y_true, y_pred) and jnp.ndim(self._fn(y_true, y_pred, **self._fn_kwargs)) > 0


class FunctionMetric(MeanMetricWrapper):
    """The mean of a function: `class LogCosh(FunctionMetric, function=log_cosh)`.

    Arguments of the function become attributes.
    """

    function: ClassVar[Callable[..., ArrayLike]]

    def __init_subclass__(cls, function: Callable[..., ArrayLike] | None = None, **kwargs: Any) -> None:
        """Define a constructor whose `name` is by default the name of the function."""
        super().__init_subclass__(**kwargs)
        if function is None:
            return
        cls.function = staticmethod(explained(function, hides_mesh))
        if "__init__" not in vars(cls):

            def __init__(
                self: FunctionMetric,
                name: str | None = function.__name__,
                dtype: DTypeLike | None = None,
                mesh: object = None,
            ) -> None:
                FunctionMetric.__init__(self, name, dtype, mesh)

            __init__.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(
        self, name: str | None = None, dtype: DTypeLike | None = None, mesh: object = None, **arguments: Any
    ) -> None:
        Mean.__init__(self, name, dtype, mesh)
        self._fn = self.function
        self._fn_kwargs = arguments
        vars(self).update(arguments)


def weighted_by_example(
    values: ArrayLike, sample_weight: ArrayLike | None, reduce: Callable[..., jax.Array], dtype: DTypeLike
) -> tuple[jax.Array, jax.Array | None]:
    """Return a weighted value for each example, reduced over all dims except the first, and the weights."""
    values, weight = jnp.asarray(values, dtype), None
    if sample_weight is not None:
        values, weight = align_ranks(values, jnp.asarray(sample_weight, dtype))
        values = reduce(values, axis=tuple(range(weight.ndim, values.ndim)))
        weight = jnp.broadcast_to(weight, values.shape)
        values = jnp.where(weight == 0, 0, values * weight)  # values of weight 0 may be infinite
        weight = reduce(weight, axis=tuple(range(1, weight.ndim)))
    return reduce(values, axis=tuple(range(1, values.ndim))), weight


def divide_no_nan(numerator: ArrayLike, denominator: ArrayLike) -> jax.Array:
    """`numerator / denominator`; 0 where the denominator is 0."""
    is_zero = jnp.equal(denominator, 0)
    return jnp.where(is_zero, 0.0, jnp.divide(numerator, jnp.where(is_zero, 1, denominator)))
