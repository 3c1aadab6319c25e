"""Warnings that point at the line of the user's code."""

from __future__ import annotations

import contextlib
import sys
import warnings

from keras_dist._support.ambient import warnings_issued, with_value
from keras_dist.errors import printable

# Flax's metaclass calls constructors of modules, JAX calls steps to trace them, and pools call functions
_SKIPPED = ("keras_dist", "flax", "jax", "concurrent", "contextlib", "functools")


def each_warning_once() -> contextlib.AbstractContextManager[object]:
    """Enter a context in which `warn` issues each text once, although a step is traced several times."""
    return with_value(warnings_issued, warnings_issued.get() or set[tuple[str, type[Warning]]]())


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Issue a warning for the innermost line that is neither in keras_dist nor in JAX or Flax."""
    message = printable(message) if isinstance(message, str) else message
    issued = warnings_issued.get()
    if issued is not None and (str(message), category) in issued:
        return
    if issued is not None:
        issued.add((str(message), category))
    frame, level = sys._getframe(1), 2  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _SKIPPED:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
