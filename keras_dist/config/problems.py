"""Problems of a config file, and the one `ConfigError` that lists them."""

from __future__ import annotations

import itertools
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from keras_dist.errors import ConfigError, did_you_mean, nearest

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
MISSING = "is missing"

_TYPES: dict[type, str] = {
    bool: "a boolean",
    str: "a string",
    int: "an integer",
    float: "a float",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


class Table(BaseModel):
    """A table of a config file: immutable, with the keys of its fields alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Return the keys that it may have."""
        return cls.model_fields


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        loc: keys and indices that lead to it.
        what: what is wrong.
        given: what the file says there.
        allowed: what would have been accepted.
        fix: how to fix it.
        source: where the value comes from, if not from the file.
    """

    loc: tuple[str | int, ...]
    what: str
    given: str
    allowed: str
    fix: str = ""
    source: str = ""

    def headline(self, file: str) -> str:
        """Return the place and what is wrong with it."""
        place = self.source or f"{file}: {key_path(self.loc)}"
        return f"{place}: {self.what}"


def refuse(what: str, *, allowed: str, fix: str = "") -> PydanticCustomError:
    """Return the exception by which a validator refuses a value, keeping the parts that `Problem` shows."""
    return PydanticCustomError("refused", "{what}; allowed: {allowed}", {"what": what, "allowed": allowed, "fix": fix})


def across(problems: Iterable[Problem]) -> None:
    """Raise what was found wrong between fields; these are found anew, and listed singly, by `load`."""
    texts = [f"{problem.headline('config')} (given {problem.given}; {problem.allowed})" for problem in problems]
    if texts:
        raise PydanticCustomError("across", "{text}", {"text": "; ".join(texts)})


def config_error(file: str, problems: Sequence[Problem]) -> ConfigError:
    """Return the one error that lists `problems`."""
    if len(problems) == 1:
        (only,) = problems
        return ConfigError(only.headline(file), given=only.given, expected=only.allowed, fix=only.fix)
    lines = [f"{file}: {len(problems)} problems"]
    for problem in problems:
        lines.append(f"  {problem.headline(file)}")
        for label, text in (("given:", problem.given), ("expected:", problem.allowed), ("fix:", problem.fix)):
            if text:
                lines.append(f"    {label:<9} {text}")
    return ConfigError("\n".join(lines))


def key_path(loc: Sequence[str | int]) -> str:
    """`("distribution", "layout", "d1/kernel", 1)` -> `distribution.layout."d1/kernel"[1]`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{bare}" if text else bare
    return text


class _Show(reprlib.Repr):
    """Values as config files write them, shortened."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxdict, self.maxlevel = 8, 3

    def repr_str(self, x: str, level: int) -> str:
        text = json.dumps(x[: self.maxstring], ensure_ascii=False)
        return text if len(x) <= self.maxstring else text[:-1] + '..."'

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        items = itertools.islice(x.items(), self.maxdict)
        texts = [f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in items]
        return "{" + ", ".join(texts + ["..."] * (len(x) > self.maxdict)) + "}"

    def repr_bool(self, x: bool, level: int) -> str:
        return str(x).lower()

    def repr_NoneType(self, x: None, level: int) -> str:
        return "null"


def show(value: object, *, with_type: bool = False) -> str:
    """`value` as a config file would write it, shortened; with its type: `"4" (a string)`."""
    word = _TYPES.get(type(value)) if with_type else None
    return _Show().repr(value) + (f" ({word})" if word else "")


def pydantic_problems(error: ValidationError, model: type[Table]) -> Iterator[Problem]:
    """Return the problems that pydantic found, without those between fields (see `across`)."""
    for details in error.errors(include_url=False):
        if details["type"] != "across":
            yield _problem(details, model)


def _problem(details: ErrorDetails, model: type[Table]) -> Problem:
    loc = _loc(details)
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    owner, field = _field_at(model, loc)
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown_key(loc, owner, model)
    if kind == "refused":
        return Problem(loc, context["what"], show(given), context["allowed"], context["fix"])
    allowed = (field.description if field is not None else None) or details["msg"]
    fix = f"for example {show(field.examples[0])}" if field is not None and field.examples else ""
    if kind == "missing":
        return Problem(loc, MISSING, "nothing", allowed, fix)
    if not kind.endswith("_type"):
        return Problem(loc, "has a value that is not allowed", show(given), allowed, fix)
    return Problem(loc, "has the wrong type", show(given, with_type=True), allowed, fix)


def _loc(details: ErrorDetails) -> tuple[str | int, ...]:
    """Return the way to an error, without the mark that pydantic sets when the key is wrong and not its value."""
    *way, last = details["loc"]
    if last == "[key]" and way and str(way[-1]) == str(details["input"]):
        return (*way[:-1], str(way[-1]))
    return (*way, str(last) if details["type"] == "invalid_key" else last)


def _unknown_key(loc: tuple[str | int, ...], owner: type[Table], model: type[Table]) -> Problem:
    name = str(loc[-1])
    keys = list(owner.fields())
    fix = f"write {near}" if (near := nearest(name, keys)) else "remove it"
    for table, field in model.fields().items():
        table_model = _model_of(field)
        if table_model not in (None, owner) and name in table_model.fields():
            fix = f"move it into {table}"
    return Problem(loc, f"unknown key{did_you_mean(name, keys)}", show(name), "one of the keys " + ", ".join(keys), fix)


def _field_at(model: type[Table], loc: Sequence[str | int]) -> tuple[type[Table], FieldInfo | None]:
    """Return the field that `loc` leads to or into, with the model it belongs to."""
    field: FieldInfo | None = None
    for part in loc:
        field = model.fields().get(str(part))
        inner = _model_of(field)
        if inner is None:
            break
        model = inner
    return model, field


def _model_of(field: FieldInfo | None) -> type[Table] | None:
    """Return the model that describes a field that is a table."""
    annotation: Any = field.annotation if field is not None else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, Table) else None
