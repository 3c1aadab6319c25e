"""Conversion of metrics from and to names and configs."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist._support.signatures import in_keras_order, takes
from keras_dist.errors import ModelError
from keras_dist.losses.crossentropies import CROSSENTROPY_NAMES, crossentropy_by_shapes
from keras_dist.metrics.accuracy import accuracy_by_shapes
from keras_dist.metrics.metric import Metric
from keras_dist.metrics.reduction import MeanMetricWrapper
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry, snake_case

_BY_SHAPES = {
    "accuracy": (accuracy_by_shapes, "up"),
    "acc": (accuracy_by_shapes, "up"),
    **dict.fromkeys(CROSSENTROPY_NAMES, (crossentropy_by_shapes, "down")),
}


def _converted(found: Any) -> Any:
    # a metric of Keras is callable, but updates its own state
    if isinstance(found, Metric) or (callable(found) and not hasattr(found, "update_state")):
        return found
    return None


_METRICS = ObjectRegistry(
    "metric",
    "keras_dist.metrics",
    Metric,
    accepted="a Metric, or a callable (y_true, y_pred) -> values",
    example='metrics=["accuracy"]',
    convert=_converted,
    aliases={
        "bce": "BinaryCrossentropy",
        "mse": "MeanSquaredError",
        "mae": "MeanAbsoluteError",
        "mape": "MeanAbsolutePercentageError",
        "msle": "MeanSquaredLogarithmicError",
    },
)


def get(identifier: Any) -> Any:
    """Return the `Metric` of a name, class or config.

    Args:
        identifier: a name, such as `"mse"` or `"AUC"`, a class or a config; a callable or None is returned unchanged.

    Raises:
        UnknownNameError: no metric has this name.
        ConfigError: a class needs arguments, or a config is invalid.
        ModelError: `identifier` is neither of these.

    Example:
        >>> from keras_dist import metrics
        >>> metrics.get("mse")
        <MeanSquaredError name=mean_squared_error>
    """
    return _METRICS.get(identifier)


def as_metric(identifier: Any) -> Metric:
    """Return `get(identifier)` as a `Metric`, logged under a given name, or the mean of a callable."""
    if isinstance(identifier, str) and identifier.lower() in _BY_SHAPES:
        function, direction = _BY_SHAPES[identifier.lower()]
        metric = MeanMetricWrapper(function, identifier)
        metric._direction = direction  # pyright: ignore[reportPrivateUsage]
        return metric
    found = get(identifier)
    if isinstance(found, Metric):
        if isinstance(identifier, str):
            found.name = identifier
        return found
    if found is None or not takes(found, None, None):
        raise _METRICS.refused(identifier)
    name = getattr(found, "name", None) or getattr(found, "__name__", None)
    name = (name or snake_case(type(found).__name__)).strip("<>")  # a lambda can be monitored as `lambda`
    return MeanMetricWrapper(in_keras_order(found), name)


def serialize(metric: Any) -> dict[str, Any]:
    """Return the config of a `Metric` or a named function.

    Raises:
        ConfigError: the object cannot be serialized.
    """
    return serialize_keras_object(metric)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the `Metric` or function of a config of `serialize`, here or in Keras.

    Args:
        config: the config, or any other argument of `get`.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        UnknownNameError: no metric has this name.
        ConfigError: the config names an unknown class or function.
    """
    return _METRICS.deserialize(config, custom_objects)


def get_all(identifiers: Any) -> list[Metric]:
    """Return the metrics of a list or tuple of identifiers, of a single one, or of None."""
    several: Any = identifiers if isinstance(identifiers, list | tuple) else [identifiers]
    found = [as_metric(identifier) for identifier in several if identifier is not None]
    for metric in found:
        if metric.name == "loss":
            summary = "`metrics`: two values would be logged as 'loss'"
            fix = 'keras_dist.metrics.MeanMetricWrapper(fn, name="another_loss")'
            raise ModelError(summary, given=f"a {type(metric).__name__} of this name", fix=fix)
    return found
