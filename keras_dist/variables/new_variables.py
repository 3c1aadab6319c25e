"""`NewVariables`: what variables take from the code around the place where they are made."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from keras_dist._support import ambient


@dataclasses.dataclass(frozen=True, eq=False)
class NewVariables:
    """Name scopes, outermost first, of variables outside of layers; and the stack of layers whose weights are made."""

    names: tuple[str, ...] = ()
    stacking: Any = None


_OUTSIDE = NewVariables()


def current() -> NewVariables:
    """Return what variables that are made now take from around."""
    return ambient.new_variables.get() or _OUTSIDE


def named(name: str) -> contextlib.AbstractContextManager[object]:
    """Prefix the paths of variables outside of layers inside."""
    return ambient.with_fields(ambient.new_variables, _OUTSIDE, names=(*current().names, name))


def stacking(value: Any) -> contextlib.AbstractContextManager[object]:
    """Create weights of a stack of layers inside."""
    return ambient.with_fields(ambient.new_variables, _OUTSIDE, stacking=value)
