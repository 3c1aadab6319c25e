"""String identifiers: `"adam"`, `"relu"`, `"mse"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_dist._signatures import takes
from keras_dist.errors import ConfigError, UnknownNameError, did_you_mean, shorten
from keras_dist.saving.registry import get_registered_object
from keras_dist.saving.serialization import deserialize_keras_object


def names_of(*classes: type) -> dict[str, Any]:
    """Each class by its name, as `HeNormal` and as `he_normal`.

    Example:
        >>> from keras_dist import saving
        >>> sorted(saving.names_of(type("HeNormal", (), {})))
        ['HeNormal', 'he_normal']
    """
    spellings = {cls.__name__: cls for cls in classes}
    return spellings | {_WORDS.sub("_", name).lower(): cls for name, cls in spellings.items()}


def resolve(identifier: Any, names: Mapping[str, Any], kind: str, accepted: str) -> Any:
    """The object that a name or a config means; everything else as it is. A class is made without arguments.

    Args:
        identifier: a name (registered, or in `names`), a config as `serialize_keras_object` gives, or an object.
        names: classes and objects by name.
        kind: how errors call it, such as `optimizer`.
        accepted: what else is accepted, for the error.

    Raises:
        UnknownNameError: nothing has this name.
        ConfigError: a config mentions what is not known, or a class cannot be made without arguments.
    """
    if isinstance(identifier, Mapping):
        found = deserialize_keras_object(identifier, module_objects=names)
    elif isinstance(identifier, str):
        found = get_registered_object(identifier, module_objects=names)
        if found is None:
            raise UnknownNameError(
                f"unknown {kind} {identifier!r}{did_you_mean(identifier, names)}",
                given=f"{kind}={shorten(identifier)}",
                expected=f"one of {', '.join(sorted(names))}; or {accepted}",
                fix="correct the name, or register your own: @saving.register_keras_serializable() gives it a name",
            )
    else:
        found = identifier
    if not isinstance(found, type):
        return found
    if not takes(found):
        raise ConfigError(
            f"`{kind}` is a class that needs arguments",
            given=f"{kind}={shorten(identifier)}",
            expected="a class that can be made without arguments",
            fix=f"pass an object: {found.__name__}(...)",
        )
    return found()


_WORDS = re.compile("(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])")
