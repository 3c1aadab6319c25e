"""Checks of values of configs by the types of their fields: a `config.json` may contain anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from keras_dist._support.arguments import LARGEST_SIZE, is_int, is_number
from keras_dist.errors import shorten

_LARGEST = 1e38  # float32
_MAY_BE_ZERO = ("num_types", "truncate")


def of_class(name: str, group: Any, cls: type, *arguments: Any) -> Iterator[str]:
    """Yield the problems of a group of options."""
    if not isinstance(group, cls):
        yield f"{name}={shorten(group)} must be of class {cls.__name__}"
    else:
        wrong = list(wrong_values(group))
        yield from wrong or group.problems(*arguments)  # which compare numbers


def wrong_values(group: Any) -> Iterator[str]:
    """Yield the fields of a group of options whose values have the wrong type or size."""
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if problem := wrong_value(field, value):
            yield f"{field.name}={shorten(value)} {problem}"


def wrong_value(field: dataclasses.Field[Any], value: Any) -> str:
    """Return what the value of a field must be; empty for a valid one."""
    kind = str(field.type)
    if value is None and "None" in kind:
        return ""
    if kind.startswith("int"):
        if is_int(value, LARGEST_SIZE + 1):
            return f"must be at most {LARGEST_SIZE}"
        return "" if is_int(value, 0 if field.name in _MAY_BE_ZERO else 1) else "must be a positive integer"
    if kind.startswith("float"):
        return "" if is_number(value) and 0 <= value <= _LARGEST else f"must be a number from 0 to {_LARGEST:.0e}"
    if kind.startswith("tuple"):
        is_valid = is_int if "int" in kind else is_number
        are_valid = isinstance(value, tuple) and all(is_valid(each) and 0 <= each <= _LARGEST for each in value)
        return "" if are_valid else "must be a list of numbers of at least 0"
    return "must be true or false" if kind.startswith("bool") and not isinstance(value, bool) else ""


def as_floats(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with floats for integers in fields of floats: JAX takes integers of 32 bits."""
    names = [field.name for field in dataclasses.fields(kind) if str(field.type).startswith("float")]
    return {**values, **{name: float(values[name]) for name in names if is_int(values.get(name), 0, _LARGEST)}}
