"""`read_layout_map` and `rules_of`: rules of a layout map, from a table in a file or from a map object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from keras_dist.config.formats import SUFFIXES, read_table
from keras_dist.config.problems import show
from keras_dist.errors import ConfigError

Entry = str | tuple[str, ...] | None
Axes = tuple[Entry, ...]
"""For each dim an axis of the mesh, several axes, or None."""

_UNSHARDED = (None, "unsharded", "-")
_EXPECTED = "a list or tuple with an axis, several axes or None for each dim, or a layout object"
_LAYOUT_MAP = "a layout map: a table of rules (.toml, .yaml, .yml or .json)"


def read_layout_map(file: Path) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a table in a file, which may be inside other tables; see `rules_of`."""
    fix = "name a table of rules, or a map in a program: `keras-dist migrate module:NAME`"
    if file.suffix.lower() not in SUFFIXES and file.is_file():
        given = f"suffix {file.suffix!r}"
        raise ConfigError(f"{file}: not a layout map by its name", given=given, expected=_LAYOUT_MAP, fix=fix)
    table = read_table(file, _LAYOUT_MAP)
    while len(table) == 1 and isinstance(inner := next(iter(table.values())), dict):
        table = cast("dict[Any, Any]", inner)
    rules, problems = rules_of(table)
    if not rules:
        given = f"keys {', '.join(map(str, table)) or 'none'}"
        raise ConfigError(f"{file}: the file has no rules of a layout map", given=given, expected=_EXPECTED, fix=fix)
    return rules, problems


def rules_of(layout_map: Mapping[Any, Any]) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a dict or a `LayoutMap` of keras_dist, Keras or DTensor, and messages about other values."""
    rules: dict[str, Axes] = {}
    problems: list[str] = []
    for rule, value in layout_map.items():
        try:
            rules[str(rule)] = _axes(value)
        except ValueError:
            problems.append(f"rule {str(rule)!r}: expected {_EXPECTED}, got {show(value)}")
    return rules, problems


def _axes(value: object) -> Axes:
    value = getattr(value, "axes", getattr(value, "sharding_specs", value))
    if not isinstance(value, list | tuple):
        raise ValueError("not a list")
    return tuple(_entry(entry) for entry in cast("Sequence[object]", value))


def _entry(value: object) -> Entry:
    if value in _UNSHARDED:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value:
        names = cast("Sequence[object]", value)
        if all(isinstance(name, str) and name not in _UNSHARDED for name in names):
            return tuple(cast("Sequence[str]", names))
    raise ValueError("not an axis")
