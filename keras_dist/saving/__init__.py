"""Serialization of objects to plain configs and back, with custom classes by their registered names.

Source: names, arguments and defaults as in `keras.saving`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.saving.configurable import Configurable, absent, not_initialised
from keras_dist.saving.object_registry import ObjectRegistry
from keras_dist.saving.registry import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from keras_dist.saving.serialization import deserialize_keras_object, serialize_keras_object

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
__all__ += ["load_model", "load_weights", "save_model", "save_weights"]
# These work on models, on a floor above: the package `keras_dist` tells where they live.

if TYPE_CHECKING:
    from keras_dist.models.loading import load_model as load_model
    from keras_dist.models.loading import load_weights as load_weights
    from keras_dist.models.loading import save_model as save_model
    from keras_dist.models.loading import save_weights as save_weights
else:
    __getattr__ = missing_from(__name__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
