"""`serialize` and `deserialize`: layers as configs and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.errors import ConfigError
from keras_dist.layers.base.layer import Layer
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry

_LAYERS = ObjectRegistry(
    "layer",
    "keras_dist.layers",
    Layer,
    accepted="the config of a layer, as layers.serialize gives it",
    example="layers.serialize(layers.Dense(3)); saving.deserialize_keras_object reads configs of other objects",
    convert=lambda found: found if isinstance(found, Layer) else None,
    error=ConfigError,
)


def serialize(layer: Layer) -> dict[str, Any]:
    """Return class and arguments of a layer as plain values, without its weights.

    Raises:
        ConfigError: an argument cannot be serialized.

    Example:
        >>> from keras_dist import layers
        >>> layers.deserialize(layers.serialize(layers.Dense(3, activation="relu"))).units
        3
    """
    return serialize_keras_object(layer)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Layer:
    """Return the layer that `serialize` described, here or in Keras, without its weights.

    Args:
        config: the result of `serialize`; `class_name` and `config` suffice for the layers of this package.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        ConfigError: the config contains an unknown name, or describes an object that is not a layer.
    """
    return _LAYERS.deserialize(config, custom_objects)
