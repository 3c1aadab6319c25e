"""Metrics: values for each example, summed on the device as totals and weights, divided once when read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from keras_dist._signatures import takes
from keras_dist.errors import ModelError, UnknownNameError, did_you_mean, shorten
from keras_dist.losses import align, check_arrays, mean_squared_error

__all__ = ["Mean", "Metric", "accuracy", "get", "get_all", "mean_squared_error"]


class Mean(NamedTuple):
    """A mean that is still open: `total / weight`, both scalars on the device."""

    total: Any
    weight: Any

    def __add__(self, other: tuple[Any, ...]) -> Mean:  # type: ignore[override]
        return Mean(self.total + other[0], self.weight + other[1])

    @classmethod
    def zero(cls) -> Mean:
        """Of nothing yet."""
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

    @classmethod
    def of(cls, values: Any, weight: Any = 1.0) -> Mean:
        """Of an array of values, each with the same weight."""
        values = jnp.asarray(values, jnp.float32)
        return cls(jnp.sum(values) * weight, jnp.asarray(values.size * weight, jnp.float32))


class Metric(NamedTuple):
    """A named function of `(y_true, y_pred)` that gives a value for each example."""

    name: str
    fn: Callable[[Any, Any], Any]

    @property
    def needs_targets(self) -> bool:
        """Whether it compares with `y`; others may do without."""
        return self.fn in _NAMES.values()


def accuracy(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Whether each prediction is right, as 0.0 or 1.0.

    Args:
        y_true: class indices (batch,) or (batch, 1), one-hot rows (batch, classes), or, for one output, 0 and 1.
        y_pred: scores (batch, classes), or one probability for each example (batch, 1).

    Returns:
        A value for each prediction: the shape of `y_pred` without its classes.

    Source: `keras.metrics.Accuracy` by the name "accuracy": binary, categorical or sparse by the shapes.
    """
    check_arrays("accuracy", y_true, y_pred)
    if y_pred.ndim == 0 or y_pred.shape[-1] == 1 or y_pred.ndim == 1:
        y_true, y_pred = align(y_true, y_pred)
        return ((y_pred > 0.5) == (y_true > 0.5)).astype(jnp.float32)
    if y_true.shape == y_pred.shape:
        y_true = jnp.argmax(y_true, axis=-1)
    elif y_true.ndim == y_pred.ndim and y_true.shape[-1] == 1:
        y_true = jnp.squeeze(y_true, -1)
    return (jnp.argmax(y_pred, axis=-1) == y_true).astype(jnp.float32)


_NAMES: dict[str, Callable[[Any, Any], Any]] = {
    "accuracy": accuracy,
    "acc": accuracy,
    "mse": mean_squared_error,
    "mean_squared_error": mean_squared_error,
}


def get(identifier: Any) -> Metric:
    """The metric called `identifier`, or made of a callable `(y_true, y_pred) -> values`.

    Raises:
        UnknownNameError: no metric has this name.
        ModelError: it is neither a name nor a callable.
    """
    if isinstance(identifier, Metric):
        return identifier
    if isinstance(identifier, str):
        if identifier not in _NAMES:
            raise UnknownNameError(
                f"unknown metric {identifier!r}{did_you_mean(identifier, _NAMES)}",
                given=f"metrics=[..., {identifier!r}]",
                expected=f"one of {', '.join(sorted(_NAMES))}, or a callable (y_true, y_pred) -> values",
                fix="correct the name, or pass a function",
            )
        return Metric(identifier, _NAMES[identifier])
    if callable(identifier) and takes(identifier, None, None):
        return Metric(getattr(identifier, "__name__", type(identifier).__name__), identifier)
    raise ModelError(
        "a metric is neither a name nor a callable (y_true, y_pred)",
        given=f"{shorten(identifier)} of type {type(identifier).__name__}",
        expected="a name or a callable (y_true, y_pred) -> values",
        fix='for example metrics=["accuracy"]',
    )


def get_all(identifiers: Any) -> list[Metric]:
    """The metrics of `compile(metrics=...)`: a list or tuple of what `get` takes, a single one, or None.

    Raises:
        UnknownNameError: no metric has one of the names.
        ModelError: one is neither a name nor a callable, or two would be logged under one name.
    """
    several = isinstance(identifiers, list | tuple) and not isinstance(identifiers, Metric)
    found = [get(identifier) for identifier in (identifiers if several else [identifiers]) if identifier is not None]
    names = ["loss", *(metric.name for metric in found)]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ModelError(
            f"`metrics`: two values would be logged as {repeated[0]!r}",
            given=f"the names {names}",
            expected="a name of its own for each metric, and none called 'loss'",
            fix=f"keras_dist.metrics.Metric('another_{repeated[0]}', fn)",
        )
    return found
