"""Paths of leaves in pytrees, such as `block/dense/kernel` or `layers/0/kernel`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

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


def prefixes(path: str) -> Iterator[str]:
    """Yield the prefixes of a path, from the empty path to itself."""
    yield ""
    yield from itertools.accumulate(filter(None, path.split("/")), lambda above, name: f"{above}/{name}")


_Item = TypeVar("_Item")


def by_prefix(items: Iterable[_Item], names: Callable[[_Item], Iterable[str]]) -> dict[str, list[_Item]]:
    """Return the items below each prefix of their names, in order, in linear time."""
    found: dict[str, list[_Item]] = {}
    for item in items:
        for prefix in dict.fromkeys(prefix for name in names(item) for prefix in prefixes(name)):
            found.setdefault(prefix, []).append(item)
    return found


def _name(key: Any) -> str | int:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return value if isinstance(value, int) else str(value)
    return str(key)
