"""Metrics by name: `"accuracy"`, `"mse"`, `"AUC"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist import saving
from keras_dist._signatures import in_keras_order, takes
from keras_dist.errors import ModelError, shorten, type_name
from keras_dist.metrics import (
    accuracy,
    auc,
    confusion,
    correlation,
    f_score,
    iou,
    margin,
    operating_point,
    perplexity,
    probabilistic,
    r2_score,
    reduction,
    regression,
)
from keras_dist.metrics.metric import Metric, snake_case

_CLASSES: tuple[type[Metric], ...] = (
    accuracy.Accuracy,
    accuracy.BinaryAccuracy,
    accuracy.CategoricalAccuracy,
    accuracy.SparseCategoricalAccuracy,
    accuracy.SparseTopKCategoricalAccuracy,
    accuracy.TopKCategoricalAccuracy,
    auc.AUC,
    confusion.FalseNegatives,
    confusion.FalsePositives,
    confusion.Precision,
    confusion.Recall,
    confusion.TrueNegatives,
    confusion.TruePositives,
    correlation.ConcordanceCorrelation,
    correlation.PearsonCorrelation,
    f_score.F1Score,
    f_score.FBetaScore,
    margin.CategoricalHinge,
    margin.Hinge,
    margin.SquaredHinge,
    iou.BinaryIoU,
    iou.IoU,
    iou.MeanIoU,
    iou.OneHotIoU,
    iou.OneHotMeanIoU,
    operating_point.PrecisionAtRecall,
    operating_point.RecallAtPrecision,
    operating_point.SensitivityAtSpecificity,
    operating_point.SpecificityAtSensitivity,
    perplexity.Perplexity,
    probabilistic.BinaryCrossentropy,
    probabilistic.CategoricalCrossentropy,
    probabilistic.KLDivergence,
    probabilistic.Poisson,
    probabilistic.SparseCategoricalCrossentropy,
    r2_score.R2Score,
    reduction.Mean,
    reduction.MeanMetricWrapper,
    reduction.Sum,
    regression.CosineSimilarity,
    regression.LogCoshError,
    regression.MeanAbsoluteError,
    regression.MeanAbsolutePercentageError,
    regression.MeanSquaredError,
    regression.MeanSquaredLogarithmicError,
    regression.RootMeanSquaredError,
)
_ALIASES: dict[str, type[Metric]] = {
    "bce": probabilistic.BinaryCrossentropy,
    "mse": regression.MeanSquaredError,
    "mae": regression.MeanAbsoluteError,
    "mape": regression.MeanAbsolutePercentageError,
    "msle": regression.MeanSquaredLogarithmicError,
}
_BY_SHAPES = {
    "accuracy": (accuracy.accuracy_by_shapes, "up"),
    "acc": (accuracy.accuracy_by_shapes, "up"),
    "crossentropy": (probabilistic.crossentropy_by_shapes, "down"),
    "ce": (probabilistic.crossentropy_by_shapes, "down"),
}
_NAMES: dict[str, Any] = {
    **{name: cls for cls in _CLASSES for name in (cls.__name__, snake_case(cls.__name__))},
    **{name: cls for alias, cls in _ALIASES.items() for name in (alias, alias.upper())},
}


def get(identifier: Any) -> Any:
    """The `Metric` or function that `identifier` means.

    Args:
        identifier: a name, such as `"mse"` or `"AUC"`, a class or a config, which give an object; a callable or None,
            which come back as they are.

    Raises:
        UnknownNameError: no metric has this name.
        ConfigError: it is a class that needs arguments, or a config that cannot be read.
        ModelError: it is none of these.

    Example:
        >>> from keras_dist import metrics
        >>> metrics.get("mse")
        <MeanSquaredError name=mean_squared_error>

    Source: `keras.metrics.get`.
    """
    if identifier is None:
        return None
    is_foreign = isinstance(identifier, type) and not issubclass(identifier, Metric)
    found = None if is_foreign else saving.resolve(identifier, _NAMES, "metric", _ACCEPTED)
    # a metric of Keras is callable, but keeps its state to itself
    if not (isinstance(found, Metric) or callable(found)) or hasattr(found, "update_state") > isinstance(found, Metric):
        raise _no_metric(identifier)
    return found


def as_metric(identifier: Any) -> Metric:
    """What `compile` measures by.

    Args:
        identifier: as of `get`. A name is what the metric will be logged as; `"accuracy"` and `"crossentropy"` choose
            by the shapes. Of a callable `(y_true, y_pred) -> values` the mean is taken.

    Raises:
        UnknownNameError: no metric has this name.
        ConfigError: it is a class that needs arguments, or a config that cannot be read.
        ModelError: it is neither a name nor a callable.
    """
    if isinstance(identifier, str) and identifier.lower() in _BY_SHAPES:
        function, direction = _BY_SHAPES[identifier.lower()]
        metric = reduction.MeanMetricWrapper(function, identifier)
        metric._direction = direction
        return metric
    found = get(identifier)
    if isinstance(found, Metric):
        if isinstance(identifier, str):
            found.name = identifier
        return found
    if found is None or not takes(found, None, None):
        raise _no_metric(identifier)
    name = getattr(found, "name", None) or getattr(found, "__name__", None)
    name = (name or snake_case(type(found).__name__)).strip("<>")  # lambdas, too, have a name that can be monitored
    return reduction.MeanMetricWrapper(in_keras_order(found), name)


def serialize(metric: Any) -> dict[str, Any]:
    """A `Metric` or a named function as a config of plain values.

    Raises:
        ConfigError: it cannot be written down.

    Source: `keras.metrics.serialize`.
    """
    return saving.serialize_keras_object(metric)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The `Metric` or function that `serialize` has written down, here or in Keras.

    Args:
        config: what `serialize` gave; or whatever else `get` takes.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        UnknownNameError: no metric has this name.
        ConfigError: the config mentions what is not known.

    Source: `keras.metrics.deserialize`.
    """
    with saving.custom_object_scope(custom_objects):
        return get(config)


def get_all(identifiers: Any) -> list[Metric]:
    """The metrics that a list or tuple of identifiers means, or a single one, or None.

    Raises:
        UnknownNameError: no metric has one of the names.
        ModelError: one is neither a name nor a callable, or is called 'loss'.
    """
    several = identifiers if isinstance(identifiers, list | tuple) else [identifiers]
    found = [as_metric(identifier) for identifier in several if identifier is not None]
    for metric in found:
        if metric.name == "loss":
            raise ModelError(
                "`metrics`: two values would be logged as 'loss'",
                given=f"a {type(metric).__name__} of this name",
                expected="a name of its own for each metric",
                fix='keras_dist.metrics.MeanMetricWrapper(fn, name="another_loss")',
            )
    return found


_ACCEPTED = "a callable (y_true, y_pred) -> values"


def _no_metric(identifier: Any) -> ModelError:
    return ModelError(
        "a metric is neither a name nor a callable (y_true, y_pred)",
        given=f"{shorten(identifier)} of type {type_name(identifier)}",
        expected=f"a name, a Metric, or {_ACCEPTED}",
        fix='for example metrics=["accuracy"]',
    )
