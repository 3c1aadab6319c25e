"""The current distribution: a process-wide default, overridden inside `Distribution.scope()`.

The default is seen by every thread and notebook cell; an override lives
in a `ContextVar`, so that scopes in different threads and tasks do not disturb each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from keras_dist.errors import DistributionError, shorten, type_name

if TYPE_CHECKING:
    from keras_dist.distribution.strategy import Distribution

_default: Distribution | None = None
_override: ContextVar[Distribution | None] = ContextVar("keras_dist_distribution", default=None)


def distribution() -> Distribution | None:
    """The current distribution: that of the innermost `scope()`, else the one set by `set_distribution`, else None.

    Source: `keras.distribution.distribution`.
    """
    override_value = _override.get()
    return _default if override_value is None else override_value


def set_distribution(value: Distribution | None) -> None:
    """Make `value` the current distribution of the whole process; None for none.

    Raises:
        DistributionError: `value` is not a distribution.

    Source: `keras.distribution.set_distribution`.
    """
    if value is not None and (isinstance(value, type) or not hasattr(value, "snapshot")):
        raise DistributionError(
            "set_distribution: `value` is not a Distribution",
            given=f"{shorten(value)} of type {type_name(value)}",
            expected="a DataParallel, ModelParallel, FullySharded or your own Distribution of keras_dist, or None",
            fix="for example set_distribution(keras_dist.DataParallel())",
        )
    global _default
    _default = value


@contextlib.contextmanager
def override(value: Distribution) -> Iterator[None]:
    """Make `value` the current distribution inside a `with` block of this thread or task."""
    token = _override.set(value)
    try:
        yield
    finally:
        _override.reset(token)
