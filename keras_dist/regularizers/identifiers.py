"""Regularizers by name and from configs, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras_dist._signatures import takes
from keras_dist.errors import ModelError, shorten
from keras_dist.regularizers.norms import L1, L1L2, L2
from keras_dist.regularizers.orthogonality import OrthogonalRegularizer
from keras_dist.saving import custom_object_scope, names_of, resolve, serialize_keras_object

_NAMES: dict[str, Any] = {**names_of(L1, L2, L1L2, OrthogonalRegularizer), "l1_l2": L1L2}


def get(identifier: Any) -> Callable[[Any], Any] | None:
    """The regularizer that `identifier` means: a callable `x -> scalar`.

    Args:
        identifier: a name, a config, a `Regularizer` or its class, a function of one array, or None.

    Returns:
        None for None.

    Raises:
        UnknownNameError: no regularizer has this name.
        ModelError: it cannot be called with one array.
        ConfigError: a config cannot be read.

    Example:
        >>> from keras_dist import regularizers
        >>> regularizers.get("l2").get_config()
        {'l2': 0.01}

    Source: `keras.regularizers.get`.
    """
    if identifier is None:
        return None
    found = resolve(identifier, _NAMES, "regularizer", "a function of one array")
    if not callable(found) or not takes(found, None):
        raise ModelError(
            "`regularizer` cannot be called as regularizer(x)",
            given=f"{shorten(identifier)} of type {type(identifier).__name__}",
            expected="a name, a config, a Regularizer, or a function of one array",
            fix='for example "l2" or regularizers.L2(0.001)',
        )
    return found


def serialize(regularizer: Any) -> Any:
    """The config of a regularizer.

    Source: `keras.regularizers.serialize`.
    """
    return serialize_keras_object(regularizer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The regularizer of a config or name; `custom_objects` are known by name besides.

    Source: `keras.regularizers.deserialize`.
    """
    with custom_object_scope(custom_objects):
        return get(config)
