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
