"""The parameters of functions and constructors, to compare them with those of Keras."""

import inspect
from collections.abc import Callable
from typing import Any

MISSING, EXTRA, BY_KEYWORD, ELSEWHERE, DEFAULT = "missing", "extra", "by keyword", "at another place", "another default"
"""In what way a parameter can differ."""


def differences(ours: Callable[..., Any], theirs: Callable[..., Any]) -> dict[str, str]:
    """In what way our parameters differ from theirs, by name: one of the words above.

    What `**kwargs` of a constructor hand on to base classes counts as parameters by keyword. Where theirs take `*args`,
    nothing of ours is extra.
    """
    mine, others = _named(ours), _named(theirs)
    accepted = _inherited(ours) | mine
    places, expected = _places(mine), _places(others)
    found: dict[str, str] = {}
    for name, parameter in others.items():
        if name not in accepted:
            found[name] = MISSING
        elif _one_for_all(accepted[name].default) != _one_for_all(parameter.default):
            found[name] = DEFAULT
        elif name in expected and name not in places:
            found[name] = BY_KEYWORD
        elif name in expected and places[name] != expected[name]:
            found[name] = ELSEWHERE
    if inspect.Parameter.VAR_POSITIONAL in _kinds(theirs):
        return found
    known = _inherited(theirs) | others
    return found | {name: EXTRA for name in mine if name not in known}


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function.__init__ if isinstance(function, type) else function)


def _named(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that have a name of their own, without `self`."""
    gathering = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: parameter
        for name, parameter in _signature(function).parameters.items()
        if name not in ("self", "cls") and parameter.kind not in gathering
    }


def _inherited(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What the constructors of base classes take, if a constructor hands on what it does not know."""
    if not isinstance(function, type):
        return {}
    found: dict[str, inspect.Parameter] = {}
    for cls in function.__mro__:
        found = _named(cls) | found
        if inspect.Parameter.VAR_KEYWORD not in _kinds(cls):
            break
    return found


def _kinds(function: Callable[..., Any]) -> set[Any]:
    return {parameter.kind for parameter in _signature(function).parameters.values()}


def _places(parameters: dict[str, inspect.Parameter]) -> dict[str, int]:
    names = [name for name, parameter in parameters.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    return {name: place for place, name in enumerate(names)}


def _one_for_all(default: Any) -> Any:
    while isinstance(default, tuple) and len(set(default)) == 1:
        default = default[0]
    return default
