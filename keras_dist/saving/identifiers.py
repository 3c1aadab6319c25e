"""String identifiers: `"adam"`, `"relu"`, `"mse"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.errors import UnknownNameError, did_you_mean, shorten
from keras_dist.saving.registry import get_registered_object
from keras_dist.saving.serialization import deserialize_keras_object


def resolve(identifier: Any, names: Mapping[str, Any], kind: str, accepted: str) -> Any:
    """The object that a name or a config means; everything else as it is. A class is made without arguments.

    Args:
        identifier: a name (in `names`, or registered), a config as `serialize_keras_object` gives, or an object.
        names: classes and objects by name; names of classes are known as `Name` and as `name`.
        kind: how errors call it, such as `optimizer`.
        accepted: what else is accepted, for the error.

    Raises:
        UnknownNameError: nothing has this name.
    """
    if isinstance(identifier, Mapping):
        found = deserialize_keras_object(dict(identifier))
    elif isinstance(identifier, str):
        found = names.get(identifier)
        if found is None:
            found = get_registered_object(identifier)
        if found is None:
            raise UnknownNameError(
                f"unknown {kind} {identifier!r}{did_you_mean(identifier, names)}",
                given=f"{kind}={shorten(identifier)}",
                expected=f"one of {', '.join(sorted(names))}; or {accepted}",
                fix="correct the name, or register your own: @saving.register_keras_serializable() gives it a name",
            )
    else:
        found = identifier
    return found() if isinstance(found, type) else found
