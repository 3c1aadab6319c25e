"""Ambient values: context variables that have another value inside of a `with` block."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def with_value(variable: contextvars.ContextVar[Any], value: T) -> Generator[T]:
    """Context manager in which a context variable has this value, which it returns."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
