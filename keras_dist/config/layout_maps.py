"""`read_layout_map` and `rules_of`: the rules of a layout map, from a table in a file or from a map object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from keras_dist.config.formats import SUFFIXES, read_table
from keras_dist.config.problems import show
from keras_dist.config.schema import RunConfig
from keras_dist.errors import ConfigError

Entry = str | tuple[str, ...] | None
Axes = tuple[Entry, ...]
"""For each dim an axis of the mesh, several axes, or None."""

_UNSHARDED = (None, "unsharded", "-")
_WRITTEN_OUT = re.compile(r"sharding_specs:(\S*)")  # as DTensor prints a layout
_EXPECTED = "a list or tuple with an axis, several axes or None for each dim, or a layout object"
_LAYOUT_MAP = "a layout map: a table of rules (.toml, .yaml, .yml or .json)"
_IMPORT_PATH = "a map in a program is named as an argument of migrate_layout_map, or `keras-dist migrate module:NAME`"
_OF_MODELS = (".keras", ".h5", ".hdf5", ".safetensors", ".orbax")


def read_layout_map(file: Path) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a layout map in the order of the file, and a text for each value that is not a layout.

    Args:
        file: a TOML, YAML or JSON file with a table of rules, which may be inside other tables, as in
            `[distribution.layout]`.

    Raises:
        ConfigError: the file cannot be read, or has no rules.
    """
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES and file.is_file():
        is_model = suffix in _OF_MODELS
        given = f"suffix {file.suffix!r}{', of files of models and weights' if is_model else ''}"
        fix = f"name the table with the rules; {_IMPORT_PATH}"
        raise ConfigError(f"{file}: not a layout map by its name", given=given, expected=_LAYOUT_MAP, fix=fix)
    table = read_table(file, _LAYOUT_MAP)
    while len(table) == 1 and isinstance(inner := next(iter(table.values())), dict):
        table = cast("dict[Any, Any]", inner)
    rules, problems = rules_of(table)
    if not rules and {"class_name", "config"} <= {*table}:
        given = f"class_name={show(table['class_name'])}"
        fix = f"name the table with the rules: configs of Keras hold none; {_IMPORT_PATH}"
        raise ConfigError(f"{file} is the config of an object of Keras, not a layout map", given=given, fix=fix)
    if not rules and {*table} & {*RunConfig.model_fields}:
        given = f"settings {', '.join(map(str, table))}"
        fix = f"try its rules with `keras-dist check {file}`; to migrate older ones, move them to a separate file"
        raise ConfigError(f"{file} is the config of a run, not a layout map", given=given, fix=fix)
    if not table:
        fix = 'write a table such as {"d1/kernel" = ["-", "model"]}'
        raise ConfigError(f"{file}: there is no rule of a layout map", given=f"{str(file)!r}", fix=fix)
    return rules, problems


def rules_of(layout_map: Mapping[Any, Any]) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a map in its order, and a text for each value that is not a layout.

    Args:
        layout_map: a dict, or a `LayoutMap` of keras_dist, Keras or DTensor. Layouts are lists or tuples of axes, or
            objects with `axes` or `sharding_specs`.
    """
    rules: dict[str, Axes] = {}
    problems: list[str] = []
    for rule, value in layout_map.items():
        try:
            rules[str(rule)] = _axes(value)
        except ValueError:
            problems.append(f"rule {str(rule)!r}: expected {_EXPECTED}, got {show(value)}")
    return rules, problems


def _axes(value: object) -> Axes:
    """Return the axes of a layout.

    Raises:
        ValueError: `value` is not a layout.
    """
    if isinstance(value, str) and (found := _WRITTEN_OUT.match(value)):
        value = [part for part in found[1].split(",") if part]
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
