"""`NewVariables`: settings of variables that are created inside of a scope."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from keras_dist._support import ambient


@dataclasses.dataclass(frozen=True, eq=False)
class NewVariables:
    """Settings of new variables: name scopes, outermost first, and the stack of layers that the weights belong to."""

    names: tuple[str, ...] = ()
    stacking: Any = None


_OUTSIDE = NewVariables()


def current() -> NewVariables:
    """Return the settings of variables that are created now."""
    return ambient.new_variables.get() or _OUTSIDE


def named(name: str) -> contextlib.AbstractContextManager[object]:
    """Prefix the paths of variables outside of layers inside."""
    return ambient.with_fields(ambient.new_variables, _OUTSIDE, names=(*current().names, name))


def stacking(value: Any) -> contextlib.AbstractContextManager[object]:
    """Create weights of a stack of layers inside."""
    return ambient.with_fields(ambient.new_variables, _OUTSIDE, stacking=value)
