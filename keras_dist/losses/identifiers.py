"""Losses by name and config, and as either."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from keras_dist._support.signatures import in_keras_order, takes
from keras_dist.errors import ModelError
from keras_dist.losses.auto_crossentropy import NAMES, crossentropy_by_shapes
from keras_dist.losses.loss import Loss, LossFunctionWrapper
from keras_dist.saving.object_registry import ObjectRegistry
from keras_dist.saving.serialization import serialize_keras_object

_LOSSES = ObjectRegistry(
    "loss",
    "keras_dist.losses",
    (Loss, LossFunctionWrapper),
    accepted="a Loss, or a callable (y_true, y_pred) -> values",
    example='loss="mse"',
    convert=lambda found: found if callable(found) else None,
    wrong="is neither a name nor a callable",
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
    """Return the function or `Loss` that `identifier` means.

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
    """
    return _LOSSES.get(identifier)


def as_loss(identifier: Any) -> Loss:
    """Return what `get` finds as a `Loss`.

    Args:
        identifier: as of `get`; `"crossentropy"` chooses by the shapes. Any other callable
            `(y_true, y_pred) -> values or scalar` may do without targets.
            Functions of `(logits, labels)` and the like, as optax has them, get their arguments in that order.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: a config mentions an unknown class, or a class needs arguments.
        ModelError: it is none of these, or cannot be called with these parameters.
    """
    if isinstance(identifier, str) and identifier.lower() in NAMES:
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
        ConfigError: it cannot be written down.
    """
    return serialize_keras_object(loss)


def deserialize(name: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the `Loss` or function that `serialize` has written down, here or in Keras.

    Args:
        name: the config; or whatever else `get` takes.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        UnknownNameError: no loss has this name.
        ConfigError: the config mentions what is not known.
    """
    return _LOSSES.deserialize(name, custom_objects)
