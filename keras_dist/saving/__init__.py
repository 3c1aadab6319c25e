"""Serialization of objects to plain configs and back, with custom classes by their registered names."""

import importlib
from typing import TYPE_CHECKING, Any

from keras_dist._docstrings import complete_docstrings
from keras_dist._not_here import missing_from
from keras_dist.saving.configurable import Configurable, absent, not_initialised
from keras_dist.saving.registry import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from keras_dist.saving.serialization import deserialize_keras_object, serialize_keras_object
from keras_dist.saving.vocabulary import Vocabulary

__all__ = [
    "Configurable",
    "CustomObjectScope",
    "Vocabulary",
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
complete_docstrings(vars(), ours=("Configurable", "Vocabulary", "absent", "not_initialised"))
__all__ += ["load_model", "load_weights", "save_model", "save_weights"]

_OF_MODELS = ("load_model", "load_weights", "save_model", "save_weights")
"""What Keras has under this name, and lives on the floor of models: looked up there when it is asked for."""

if TYPE_CHECKING:
    from keras_dist.models.loading import load_model as load_model
    from keras_dist.models.loading import load_weights as load_weights
    from keras_dist.models.loading import save_model as save_model
    from keras_dist.models.loading import save_weights as save_weights
else:
    _missing = missing_from(__name__)

    def __getattr__(name: str) -> Any:
        if name in _OF_MODELS:
            return getattr(importlib.import_module("keras_dist.models.loading"), name)
        return _missing(name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_OF_MODELS})
