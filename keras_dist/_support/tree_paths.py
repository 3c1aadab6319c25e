"""Paths of leaves in pytrees, such as `block/dense/kernel` or `layers/0/kernel`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

Parts = tuple[str | int, ...]

MEMBERS = "_members"
"""Name of an attribute that is not part of paths, because its entries have names."""


def parts_of(key_path: Sequence[Any]) -> Parts:
    """Return the names and indices in a `jax.tree_util` key path."""
    return visible(_name(key) for key in key_path)


def visible(parts: Iterable[Any]) -> Parts:
    """Return the parts of a path that are shown to users."""
    return tuple(part for part in parts if part != MEMBERS)


def join(parts: Iterable[Hashable]) -> str:
    """Join the parts of a path: `("layers", 0, "kernel")` -> `"layers/0/kernel"`."""
    return "/".join(str(part) for part in parts)


def _name(key: Any) -> str | int:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return value if isinstance(value, int) else str(value)
    return str(key)
