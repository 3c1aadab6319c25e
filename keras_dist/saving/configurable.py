"""`Configurable`: a class whose instances know the arguments they were made with."""

from __future__ import annotations

import inspect
from typing import Any, Self

from keras_dist.saving.serialization import deserialize_keras_object, serialize_keras_object


class Configurable:
    """A class whose instances know the arguments they were made with: `get_config` and `from_config` follow from them.

    A subclass whose state is more than its arguments overrides `get_config`, as in Keras.
    """

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note the arguments; `__init__` gets them too."""
        self = super().__new__(cls)
        # past the __setattr__ of subclasses: this is no attribute of theirs
        object.__setattr__(self, "_arguments", _bound(cls, args, kwargs))
        return self

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor as plain values: numbers, strings, lists, and dicts of these.

        Raises:
            ConfigError: an argument cannot be written down.
        """
        return {name: serialize_keras_object(value) for name, value in self._arguments.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """An object made with the arguments that `get_config` gave."""
        return cls(**{name: deserialize_keras_object(value) for name, value in config.items()})


def _bound(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Each parameter of the constructor with its value, defaults included; empty when the call does not fit."""
    signature = inspect.signature(cls.__init__)
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError:
        return {}  # __init__ is about to say so better
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for index, (name, value) in enumerate(bound.arguments.items()):
        kind = signature.parameters[name].kind
        if index == 0 or kind is inspect.Parameter.VAR_POSITIONAL:
            continue  # self; *args have no names
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        else:
            arguments[name] = value
    return arguments
