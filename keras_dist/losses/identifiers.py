"""Conversion of losses from and to names and configs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from keras_dist._support.signatures import in_keras_order, takes
from keras_dist.errors import ModelError
from keras_dist.losses.crossentropies import CROSSENTROPY_NAMES, crossentropy_by_shapes
from keras_dist.losses.loss import Loss, LossFunctionWrapper
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry

_LOSSES = ObjectRegistry(
    "loss",
    "keras_dist.losses",
    (Loss, LossFunctionWrapper),
    accepted="a Loss, or a callable (y_true, y_pred) -> values",
    example='loss="mse"',
    convert=lambda found: found if callable(found) else None,
    functions=True,
    aliases={
        "bce": "binary_crossentropy",
        "kld": "kl_divergence",
        "mae": "mean_absolute_error",
        "mape": "mean_absolute_percentage_error",
        "mse": "mean_squared_error",
        "msle": "mean_squared_logarithmic_error",
    },
)


def get(identifier: Any) -> Any:
    """Return the function or `Loss` of a name, class or config.

    Args:
        identifier: the name of a function, such as `"mse"`; the name of a class, such as `"MeanSquaredError"`, or the
            class, for an object; a config; a callable or None, which are returned unchanged.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: a config mentions an unknown class, or a class needs arguments.
        ModelError: `identifier` is neither of these.

    Example:
        >>> from keras_dist import losses
        >>> losses.get("mse") is losses.mean_squared_error
        True
        >>> losses.get({"class_name": "Huber", "config": {"delta": 2.0}}).delta
        2.0
    """
    return _LOSSES.get(identifier)


def as_loss(identifier: Any) -> Loss:
    """Return `get(identifier)` as a `Loss`; functions of `(logits, labels)`, as in optax, are called in that order."""
    if isinstance(identifier, str) and identifier.lower() in CROSSENTROPY_NAMES:
        return LossFunctionWrapper(crossentropy_by_shapes, name=identifier)
    found = get(identifier)
    if isinstance(found, Loss):
        if not takes(found, None, None, None):
            raise ModelError(
                f"{type(found).__name__}.__call__ must be a method __call__(self, y_true, y_pred, sample_weight=None)",
                given=f"__call__{inspect.signature(found)}",
                fix="define call(self, y_true, y_pred) in its place: __call__ weighs and reduces what that returns",
            )
        return found
    if found is None:
        raise _LOSSES.refused(found)
    own = next((cls for cls in _LOSSES.names.values() if getattr(cls, "function", None) is found), None)
    return LossFunctionWrapper(in_keras_order(found)) if own is None else own()


def serialize(loss: Any) -> dict[str, Any]:
    """Return the config of a `Loss` or a named function.

    Raises:
        ConfigError: the object cannot be serialized.
    """
    return serialize_keras_object(loss)


def deserialize(name: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the `Loss` or function of a config of `serialize`, here or in Keras.

    Args:
        name: the config, or any other argument of `get`.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: the config names an unknown class or function.
    """
    return _LOSSES.deserialize(name, custom_objects)
