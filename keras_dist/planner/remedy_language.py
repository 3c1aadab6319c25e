"""The language of remedies: Python, or lines of a config where the commands plan the run of a config."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable

from keras_dist.distribution.strategy import Distribution

config_lines: contextvars.ContextVar[Callable[[Distribution], str] | None] = contextvars.ContextVar(
    "config_lines", default=None
)
"""Renders the layout rules of a distribution as lines of a config; None for Python."""


def setting(name: str, value: str) -> str:
    """Return how to give an argument of `compile`."""
    return f"compile({name}={value!r})" if config_lines.get() is None else f"training.{name} = {json.dumps(value)}"
