"""Layers as configs and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.errors import ConfigError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.saving import deserialize_keras_object, serialize_keras_object


def serialize(layer: Layer) -> dict[str, Any]:
    """The class and arguments of a layer as plain values; not its weights.

    Raises:
        ConfigError: an argument cannot be written down.

    Example:
        >>> from keras_dist import layers
        >>> layers.deserialize(layers.serialize(layers.Dense(3, activation="relu"))).units
        3

    Source: `keras.layers.serialize`.
    """
    return serialize_keras_object(layer)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Layer:
    """The layer that `serialize` has written down, here or in Keras, without its weights.

    Args:
        config: what `serialize` gave; `class_name` and `config` are enough for the layers of this package.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        ConfigError: the config mentions what is not known, or is of something else than a layer.

    Source: `keras.layers.deserialize`.
    """
    layer = deserialize_keras_object({"module": "keras_dist.layers", **config}, custom_objects)
    if not isinstance(layer, Layer):
        raise ConfigError(
            "layers.deserialize: the config is not of a layer",
            given=f"{shorten(config)}, a {type(layer).__name__}",
            expected="what layers.serialize gave for a layer",
            fix="read it with keras_dist.saving.deserialize_keras_object",
        )
    return layer
