"""Whether a user's callable can be called as it is going to be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Whether `function` can be called with arguments like these; True where Python cannot tell (some builtins)."""
    if inspect.isclass(function):  # metaclasses such as Flax's hide the parameters of __init__
        function, args = function.__init__, (None, *args)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def takes_keyword(cls: type, name: str) -> bool:
    """Whether the constructor of `cls` takes an argument of this name, be it among any others."""
    parameters = inspect.signature(cls.__init__).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
