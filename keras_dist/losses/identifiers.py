"""Losses by name and config, and as either."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from keras_dist._signatures import in_keras_order, takes
from keras_dist.errors import ModelError, shorten
from keras_dist.losses import (
    binary,
    categorical,
    contrastive,
    margin,
    probabilistic,
    regression,
    segmentation,
    sequence,
)
from keras_dist.losses.loss import Loss
from keras_dist.losses.wrapper import LossFunctionWrapper
from keras_dist.saving import custom_object_scope, resolve, serialize_keras_object

_CLASSES: dict[Callable[..., Any], type[Loss]] = {
    binary.binary_crossentropy: binary.BinaryCrossentropy,
    binary.binary_focal_crossentropy: binary.BinaryFocalCrossentropy,
    categorical.categorical_crossentropy: categorical.CategoricalCrossentropy,
    categorical.categorical_focal_crossentropy: categorical.CategoricalFocalCrossentropy,
    categorical.categorical_generalized_cross_entropy: categorical.CategoricalGeneralizedCrossEntropy,
    categorical.sparse_categorical_crossentropy: categorical.SparseCategoricalCrossentropy,
    contrastive.circle: contrastive.Circle,
    margin.categorical_hinge: margin.CategoricalHinge,
    margin.hinge: margin.Hinge,
    margin.squared_hinge: margin.SquaredHinge,
    probabilistic.kl_divergence: probabilistic.KLDivergence,
    probabilistic.poisson: probabilistic.Poisson,
    regression.cosine_similarity: regression.CosineSimilarity,
    regression.huber: regression.Huber,
    regression.log_cosh: regression.LogCosh,
    regression.mean_absolute_error: regression.MeanAbsoluteError,
    regression.mean_absolute_percentage_error: regression.MeanAbsolutePercentageError,
    regression.mean_squared_error: regression.MeanSquaredError,
    regression.mean_squared_logarithmic_error: regression.MeanSquaredLogarithmicError,
    segmentation.dice: segmentation.Dice,
    segmentation.tversky: segmentation.Tversky,
    sequence.ctc: sequence.CTC,
}

_SHORT_NAMES: dict[str, Callable[..., Any]] = {
    "bce": binary.binary_crossentropy,
    "kld": probabilistic.kl_divergence,
    "mae": regression.mean_absolute_error,
    "mape": regression.mean_absolute_percentage_error,
    "mse": regression.mean_squared_error,
    "msle": regression.mean_squared_logarithmic_error,
}

_NAMES: dict[str, Any] = {
    **{function.__name__: function for function in _CLASSES},
    **{cls.__name__: cls for cls in _CLASSES.values()},
    **_SHORT_NAMES,
    **{name.upper(): function for name, function in _SHORT_NAMES.items()},
}


def get(identifier: Any) -> Any:
    """The function or `Loss` that `identifier` means.

    Args:
        identifier: the name of a function, such as `"mse"`, which gives the function; the name of a class, such as
            `"MeanSquaredError"`, or such a class, which give an object; a config; a callable or None, which come back
            as they are.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: a config mentions an unknown class, or a class needs arguments.
        ModelError: it is none of these.

    Example:
        >>> from keras_dist import losses
        >>> losses.get("mse") is losses.mean_squared_error
        True
        >>> losses.get({"class_name": "Huber", "config": {"delta": 2.0}}).delta
        2.0

    Source: `keras.losses.get`.
    """
    found = None if identifier is None else resolve(identifier, _NAMES, "loss", _ACCEPTED)
    if identifier is not None and not callable(found):
        raise _no_loss(found)
    return found


def as_loss(identifier: Any) -> Loss:
    """What `get` finds as a `Loss`.

    Args:
        identifier: as of `get`; any other callable `(y_true, y_pred) -> values or scalar` may do without targets.
            Functions of `(logits, labels)` and the like, as optax has them, get their arguments in that order.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: a config mentions an unknown class, or a class needs arguments.
        ModelError: it is none of these, or cannot be called with these parameters.
    """
    found = get(identifier)
    if isinstance(found, Loss):
        if not takes(found, None, None, None):
            raise ModelError(
                f"{type(found).__name__}.__call__ cannot be called as loss(y_true, y_pred, sample_weight)",
                given=f"__call__{inspect.signature(found)}",
                expected="a method __call__(self, y_true, y_pred, sample_weight=None)",
                fix="define call(self, y_true, y_pred) in its place: __call__ weighs and reduces what that returns",
            )
        return found
    if found is None:
        raise _no_loss(found)
    own = next((cls for function, cls in _CLASSES.items() if function is found), None)
    return LossFunctionWrapper(in_keras_order(found)) if own is None else own()


def serialize(loss: Any) -> dict[str, Any]:
    """A `Loss` or a named function as a config of plain values.

    Raises:
        ConfigError: it cannot be written down.

    Source: `keras.losses.serialize`.
    """
    return serialize_keras_object(loss)


def deserialize(name: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The `Loss` or function that `serialize` has written down, here or in Keras.

    Args:
        name: the config; or whatever else `get` takes.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: the config mentions what is not known.

    Source: `keras.losses.deserialize`.
    """
    with custom_object_scope(custom_objects):
        return get(name)


_ACCEPTED = "a callable (y_true, y_pred) -> values"


def _no_loss(found: Any) -> ModelError:
    return ModelError(
        "`loss` is neither a name nor a callable",
        given=f"{shorten(found)} of type {type(found).__name__}",
        expected=f"a name, a config, a Loss, or {_ACCEPTED}",
        fix='for example loss="mse"',
    )
