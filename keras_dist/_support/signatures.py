"""Signatures of users' callables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def takes(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether `function` can be called with such arguments; True if unknown, as for some builtins."""
    if inspect.isclass(function):  # metaclasses such as Flax's hide the parameters of __init__
        function, args = function.__init__, (None, *args)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except ValueError:
        return True
    except Exception:  # a TypeError, or an error of the user's own __repr__
        return False
    return True


def takes_keyword(cls: type, name: str) -> bool:
    """Whether the constructor of `cls` takes a keyword argument of this name."""
    parameters = inspect.signature(cls.__init__).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def is_method(function: Callable[..., Any]) -> bool:
    """Whether a function is a method of a class, by its qualified name."""
    owner = function.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def keywords_taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, by name, that `function` takes."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def in_keras_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` of `(y_true, y_pred)`; swap parameters named as in optax, `(logits, labels)`."""
    try:
        names = list(inspect.signature(function).parameters)[:2]
    except (TypeError, ValueError):
        return function
    if len(names) < 2 or names[0] not in _PREDICTIONS or names[1] not in _TARGETS:
        return function

    @functools.wraps(function)
    def exchanged(y_true: Any, y_pred: Any, **options: Any) -> Any:
        return function(y_pred, y_true, **options)

    return exchanged


_PREDICTIONS = ("log_predictions", "log_probs", "logits", "predictions", "predictor_outputs", "scores", "y_pred")
_TARGETS = ("labels", "log_targets", "relevances", "target", "targets", "y_true")
