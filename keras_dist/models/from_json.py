"""`model_from_json`: what `model.to_json()` has written down as a model again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keras_dist.errors import ConfigError, shorten
from keras_dist.models.model import Model
from keras_dist.saving import deserialize_keras_object


def model_from_json(json_string: str, custom_objects: Mapping[str, Any] | None = None) -> Model:
    """The model that `model.to_json()` has written down, with new weights on the current distribution.

    Args:
        json_string: JSON, from here or from Keras.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        ConfigError: it is no JSON, is damaged, or mentions what is not known.

    Source: `keras.models.model_from_json`.
    """
    try:
        config = json.loads(json_string)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "model_from_json: `json_string` is no JSON",
            given=shorten(json_string),
            expected="what model.to_json() gives",
            fix="to read a file: model_from_json(pathlib.Path(name).read_text())",
        ) from error
    model = deserialize_keras_object(config, {"Functional": Model, **(custom_objects or {})})
    if not isinstance(model, Model):
        raise ConfigError(
            "model_from_json: `json_string` describes no model",
            given=shorten(json_string),
            expected="what model.to_json() gives",
            fix="for other objects: saving.deserialize_keras_object(json.loads(...))",
        )
    return model
