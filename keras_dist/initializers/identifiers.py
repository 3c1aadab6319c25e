"""Conversion of initializers from and to names, configs, functions and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_dist.initializers.initializer import FromArray, FromFunction, Initializer, RandomInitializer, has_contract
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry


def _converted(found: Any) -> Any:
    if isinstance(found, jax.Array | np.ndarray | np.generic):
        return FromArray(found)
    if not callable(found):
        return None
    return found if has_contract(found) else FromFunction(found)


_INITIALIZERS = ObjectRegistry(
    "initializer",
    "keras_dist.initializers",
    (Initializer, RandomInitializer, FromArray, FromFunction),
    accepted="an Initializer, a function (shape, dtype) or (key, shape, dtype), or an array",
    example='"zeros"; a number is initializers.Constant(number)',
    convert=_converted,
    aliases={"normal": "RandomNormal", "one": "Ones", "uniform": "RandomUniform", "zero": "Zeros"},
)


def get(identifier: Any) -> Any:
    """Return an initializer, to be called as `initializer(shape, dtype, key=key)`.

    Args:
        identifier: a name, a config, an `Initializer` or its class, a function `f(shape, dtype)` as in Keras or
            `f(key, shape, dtype)` as in `jax.nn.initializers`, an array of the weight's shape, or None for None.

    Raises:
        UnknownNameError: no initializer has this name.
        ModelError: `identifier` is neither of these.
        ConfigError: a config is invalid.

    Example:
        >>> from keras_dist import initializers
        >>> initializers.get("he_normal").get_config()
        {'seed': None, 'input_axes': None, 'output_axes': None}
    """
    return _INITIALIZERS.get(identifier)


def serialize(initializer: Initializer) -> Any:
    """Return the config of an initializer."""
    return serialize_keras_object(initializer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the initializer of a config or name; `custom_objects` maps further names to objects."""
    return _INITIALIZERS.deserialize(config, custom_objects)
