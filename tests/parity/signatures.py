"""The arguments of constructors, to compare them."""

import inspect
from typing import Any


def positional(cls: type) -> list[tuple[str, Any]]:
    """The positional parameters of a constructor with their defaults; one for all dims stands for a tuple of them."""
    return [
        (parameter.name, _one_for_all(parameter.default))
        for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]


def _one_for_all(default: Any) -> Any:
    while isinstance(default, tuple) and len(set(default)) == 1:
        default = default[0]
    return default
