"""Serialization of objects to plain configs and back, with custom classes by their registered names."""

from keras_dist._support.raw_errors import explain_functions
from keras_dist.serialization.configurable import Configurable, absent, not_initialised
from keras_dist.serialization.object_configs import deserialize_keras_object, serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry
from keras_dist.serialization.registry import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)

__all__ = [
    "Configurable",
    "CustomObjectScope",
    "ObjectRegistry",
    "absent",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "not_initialised",
    "register_keras_serializable",
    "serialize_keras_object",
]
explain_functions(vars())
