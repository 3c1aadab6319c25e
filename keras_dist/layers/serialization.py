"""`serialize` and `deserialize`: layers as configs and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.errors import ConfigError
from keras_dist.layers.layer import Layer
from keras_dist.saving.object_registry import ObjectRegistry
from keras_dist.saving.serialization import serialize_keras_object

_LAYERS = ObjectRegistry(
    "layer",
    "keras_dist.layers",
    Layer,
    accepted="the config of a layer, as layers.serialize gives it",
    example="layers.serialize(layers.Dense(3)); saving.deserialize_keras_object reads configs of other objects",
    convert=lambda found: found if isinstance(found, Layer) else None,
    wrong="is not a layer",
    error=ConfigError,
)


def serialize(layer: Layer) -> dict[str, Any]:
    """Return the class and arguments of a layer as plain values; not its weights.

    Raises:
        ConfigError: an argument cannot be written down.

    Example:
        >>> from keras_dist import layers
        >>> layers.deserialize(layers.serialize(layers.Dense(3, activation="relu"))).units
        3
    """
    return serialize_keras_object(layer)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Layer:
    """Return the layer that `serialize` has written down, here or in Keras, without its weights.

    Args:
        config: what `serialize` gave; `class_name` and `config` are enough for the layers of this package.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        ConfigError: the config mentions what is not known, or is of something else than a layer.
    """
    return _LAYERS.deserialize(config, custom_objects)
