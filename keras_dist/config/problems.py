"""Problems of a config file, and the one `ConfigError` that lists them."""

from __future__ import annotations

import json
import re
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from keras_dist.errors import ConfigError, did_you_mean, nearest

Loc = tuple[str | int, ...]
MISSING = "is missing"

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SHOWN = 80
_MOST_LISTED = 20
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_WORDS = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "an integer",
    "invalid-json-value": "text in quotes, a number, true or false, or a list or table of these",
    "string_type": "text in quotes",
}
_TYPES: dict[type, str] = {
    bool: "a boolean",
    str: "a string",
    int: "an integer",
    float: "a float",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


def as_table(value: object) -> dict[Any, Any] | None:
    """Return `value` if it is a table; raise otherwise."""
    return cast("dict[Any, Any]", value) if isinstance(value, dict) else None


def as_tuple(value: object) -> object:
    """Convert a list to a tuple; return anything else unchanged."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


class ConfigTable(BaseModel):
    """A table of a config file: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")

    @classmethod
    def described_by(cls, given: object) -> type[ConfigTable]:
        """Return the class that describes a given table."""
        return cls

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the known keys."""
        return list(cls.model_fields)

    @classmethod
    def unknown(cls, loc: Loc, beside: object) -> Problem | None:
        """Return the problem with an unknown key; None if the table has another, larger problem."""
        name, names = str(loc[-1]), cls.key_names()
        near = nearest(name, names)
        what, fix = f"unknown key{did_you_mean(name, names)}", f"write {near}" if near else ""
        return Problem(loc, what, show(name), f"one of the keys {', '.join(names)}", fix)

    @classmethod
    def form(cls) -> str:
        """Return the allowed values of a table, for errors."""
        return f"a table with the keys {', '.join(cls.key_names())}"


@dataclass(frozen=True)
class Problem:
    """One problem of a config file."""

    loc: Loc  # keys and indices
    what: str
    given: str
    allowed: str
    fix: str = ""
    source: str = ""  # of the value, if not the file

    def headline(self, file: str) -> str:
        """Return the location and the problem."""
        return f"{self.source or file}: {key_path(self.loc)}: {self.what}"


def refuse(what: str, *, allowed: str, fix: str = "") -> PydanticCustomError:
    """Return the exception with which a validator rejects a value, with the parts of a `Problem`."""
    return PydanticCustomError("refused", "{what}; allowed: {allowed}", {"what": what, "allowed": allowed, "fix": fix})


def config_error(file: str, problems: Sequence[Problem], more: int = 0) -> ConfigError:
    """Combine `problems` into one error; list the first few and count the rest."""
    first = problems[:_MOST_LISTED]
    parts: list[Any] = [{"given": one.given, "expected": one.allowed, "fix": one.fix or "remove it"} for one in first]
    count = len(problems) + more
    if count == 1:
        return ConfigError(first[0].headline(file), **parts[0])
    each = [str(ConfigError(one.headline(file), **part)) for one, part in zip(first, parts, strict=True)]
    each += [f"and {count - len(first):,} more"] if count > len(first) else []
    return ConfigError("\n".join([f"{file}: {count:,} problems", *each]).replace("\n", "\n  "))


def key_path(loc: Sequence[str | int]) -> str:
    """Return `distribution.layout."d1/kernel"[1]` for `("distribution", "layout", "d1/kernel", 1)`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            part = part if len(part) <= _SHOWN else f"{part[:_SHOWN]}..."
            bare = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{bare}" if text else bare
    return text


def show(value: object, *, with_type: bool = False) -> str:
    """Return `value` as text of a config file, shortened; with its type: `"4" (a string)`."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, or a value that contains itself
        try:
            text = reprlib.repr(value)
        except ValueError:
            text = "an integer of more than 4,300 digits"
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{text} ({_TYPES[type(value)]})" if with_type and type(value) in _TYPES else text


def pydantic_problems(
    error: ValidationError, model: type[ConfigTable], table: Mapping[Any, Any]
) -> tuple[list[Problem], int]:
    """Return the first problems that pydantic found in a table, one for each location, and the number of others."""
    found: dict[Loc, Problem] = {}
    more: set[Loc] = set()
    keys: _Keys = {}
    for details in error.errors(include_url=False):
        loc = _loc(details, table, keys)
        if len(found) >= _MOST_LISTED:
            more.add(loc)
        elif loc not in found and (problem := _problem(details, loc, model, table)) is not None:
            found[loc] = problem
    return list(found.values()), len(more - found.keys())


def _problem(details: ErrorDetails, loc: Loc, model: type[ConfigTable], table: Mapping[Any, Any]) -> Problem | None:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    owner, field, beside = _field_at(model, loc, table)
    if kind in ("extra_forbidden", "invalid_key"):
        homes = [name for name, other in model.model_fields.items() if str(loc[-1]) in _keys_in(other)]
        problem = owner.unknown(loc, beside)
        if problem is None or not homes or homes[0] == loc[0]:
            return problem
        return replace(problem, what="unknown key", fix=f"move it into {homes[0]}")
    if kind == "refused":
        return Problem(loc, context["what"], show(given), context["allowed"], context["fix"])
    inner = _table_in(field)
    allowed = (field and field.description) or (inner.form() if inner else _words(details))
    fix = f"for example {show(field.examples[0])}" if field and field.examples else f"give {allowed}"
    if kind == "missing":
        return Problem(loc, MISSING, "nothing", allowed, fix)
    wrong = "has the wrong type" if kind.endswith("_type") else "has a value that is not allowed"
    return Problem(loc, wrong, show(given, with_type=kind.endswith("_type")), allowed, fix)


def _words(details: ErrorDetails) -> str:
    """Return the allowed values of an error of pydantic."""
    limits = [(sign, details.get("ctx", {}).get(name)) for name, sign in _SIGNS.items()]
    limit = next((f"a number {sign} {value}" for sign, value in limits if value is not None), None)
    return limit or _WORDS.get(details["type"]) or details["msg"].removeprefix("Input should be ")


_NONE = object()
_Keys = dict[int, dict[str, Any]]


def _loc(details: ErrorDetails, table: object, keys: _Keys) -> Loc:
    """Return the location of an error, without the parts that pydantic adds for unions and for wrong keys.

    `keys` caches, for each table by its id, the keys by their text.
    """
    loc: Loc = ()
    value: Any = table
    for part in details["loc"]:
        inner, items = as_table(value), as_tuple(value)
        if inner is not None:
            if id(inner) not in keys:
                keys[id(inner)] = {str(key): key for key in reversed(inner)}  # the first of two with one text
            key = keys[id(inner)].get(str(part), _NONE)
            if key is not _NONE or details["type"] == "missing":
                loc, value = (*loc, str(part)), None if key is _NONE else inner[key]
        elif isinstance(part, int) and isinstance(items, tuple) and part < len(cast("tuple[Any, ...]", items)):
            loc, value = (*loc, part), cast("tuple[Any, ...]", items)[part]
    return loc


def _field_at(model: type[ConfigTable], loc: Loc, table: object) -> tuple[type[ConfigTable], FieldInfo | None, object]:
    """Return the class and the field that `loc` leads to or into, and the table that is given for the class."""
    owner, field = model, None
    for part in loc:
        field = owner.model_fields.get(str(part))
        inner = _table_in(field)
        if inner is None:
            break
        table = (as_table(table) or {}).get(part)
        owner = inner.described_by(table)
    return owner, field, table


def _table_in(field: FieldInfo | None) -> type[ConfigTable] | None:
    """Return the class that describes a field that is a table."""
    annotation = field and field.annotation
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((one for one in options if isinstance(one, type) and issubclass(one, ConfigTable)), None)


def _keys_in(field: FieldInfo) -> list[str]:
    inner = _table_in(field)
    return [] if inner is None else inner.key_names()
