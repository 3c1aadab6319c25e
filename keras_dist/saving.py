"""Configs, registered classes, and models in files: the names of `keras.saving`.

Source: names, arguments and defaults as in `keras.saving`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.serialization import CustomObjectScope as CustomObjectScope
from keras_dist.serialization import custom_object_scope as custom_object_scope
from keras_dist.serialization import deserialize_keras_object as deserialize_keras_object
from keras_dist.serialization import get_custom_objects as get_custom_objects
from keras_dist.serialization import get_registered_name as get_registered_name
from keras_dist.serialization import get_registered_object as get_registered_object
from keras_dist.serialization import register_keras_serializable as register_keras_serializable
from keras_dist.serialization import serialize_keras_object as serialize_keras_object

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "register_keras_serializable",
    "serialize_keras_object",
]
__all__ += ["load_model", "load_weights", "save_model", "save_weights"]
# These work on models, on a floor above: the table of the package `keras_dist` names their modules.

if TYPE_CHECKING:
    from keras_dist.models.loading import load_model as load_model
    from keras_dist.models.loading import load_weights as load_weights
    from keras_dist.models.loading import save_model as save_model
    from keras_dist.models.loading import save_weights as save_weights
else:
    __getattr__ = missing_from(__name__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
