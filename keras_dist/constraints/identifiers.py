"""Constraints by name and from configs, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras_dist._signatures import takes
from keras_dist.constraints.non_negative import NonNeg
from keras_dist.constraints.norms import MaxNorm, MinMaxNorm, UnitNorm
from keras_dist.errors import ModelError, shorten
from keras_dist.saving import custom_object_scope, names_of, resolve, serialize_keras_object

_NAMES = names_of(MaxNorm, MinMaxNorm, NonNeg, UnitNorm)


def get(identifier: Any) -> Callable[[Any], Any] | None:
    """The constraint that `identifier` means: a callable `w -> w`.

    Args:
        identifier: a name, a config, a `Constraint` or its class, a function of one array, or None.

    Returns:
        None for None.

    Raises:
        UnknownNameError: no constraint has this name.
        ModelError: it cannot be called with one array.
        ConfigError: a config cannot be read.

    Example:
        >>> from keras_dist import constraints
        >>> constraints.get("max_norm").get_config()
        {'max_value': 2, 'axis': 0}

    Source: `keras.constraints.get`.
    """
    if identifier is None:
        return None
    found = resolve(identifier, _NAMES, "constraint", "a function of one array")
    if not callable(found) or not takes(found, None):
        raise ModelError(
            "`constraint` cannot be called as constraint(w)",
            given=f"{shorten(identifier)} of type {type(identifier).__name__}",
            expected="a name, a config, a Constraint, or a function of one array",
            fix='for example "non_neg" or constraints.MaxNorm(3)',
        )
    return found


def serialize(constraint: Any) -> Any:
    """The config of a constraint.

    Source: `keras.constraints.serialize`.
    """
    return serialize_keras_object(constraint)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The constraint of a config or name; `custom_objects` are known by name besides.

    Source: `keras.constraints.deserialize`.
    """
    with custom_object_scope(custom_objects):
        return get(config)
