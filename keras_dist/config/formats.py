"""Reading TOML, YAML and JSON files into plain tables.

What would take parsers seconds is refused before: large files, keys and brackets nested deeply, and aliases of YAML
that stand for very much.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml

from keras_dist.config.problems import show
from keras_dist.errors import ConfigError, did_you_mean, nearest

LIMIT_BYTES, LIMIT_DEPTH, LIMIT_VALUES = 2**17, 32, 2**15

_LONG = (r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+(?:"{3,5})?', r"'''(?:[^']|'{1,2}(?!'))*+(?:'{3,5})?")
_QUOTED = re.compile("|".join([*_LONG, r'"(?:[^"\\\n]|\\.)*+"?', r"'[^'\n]*+'?", r"#[^\n]*+"]), re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_TOO_DEEP, _HUGE = "nested too deeply", "integer string conversion"  # as Python says it


def read_table(file: Path, what: str = "a config file") -> dict[Any, Any]:
    """Return the table in a TOML, YAML or JSON file; an empty YAML file is an empty table.

    Args:
        file: its path.
        what: the expected file, in error messages.

    Raises:
        ConfigError: the file cannot be read, or its text is not a table.
    """
    if file.suffix.lower() not in _PARSERS and not os.path.isdir(file):
        summary = f"{file}: a config file must be named .toml, .yaml (or .yml) or .json"
        raise ConfigError(summary, given=f"suffix {file.suffix!r}", fix="rename the file to the format that it is in")
    text = _read_text(file, what)
    try:
        table = _PARSERS[file.suffix.lower()](text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise _syntax_error(file, text, error) from error
    if not isinstance(table, dict):
        summary = f"{file}: a config file must be a table of keys with values"
        raise ConfigError(
            summary, given=show(table, with_type=True), fix="put everything under keys such as mesh and distribution"
        )
    return cast("dict[Any, Any]", table)


def _read_text(file: Path, what: str) -> str:
    given, size = repr(str(file)), os.path.getsize(file) if os.path.isfile(file) else 0
    if os.path.exists(file) and not os.path.isfile(file):
        what = "is a directory" if os.path.isdir(file) else "is no regular file"
        raise ConfigError(f"{file}: {what}", given=given, expected="a file", fix="name a file")
    if size > LIMIT_BYTES:
        size, most = f"{size:,} bytes", f"at most {LIMIT_BYTES:,} bytes"
        raise ConfigError(f"{file}: is too large", given=size, expected=most, fix="keep data in files of their own")
    try:
        with file.open("rb") as stream:
            return stream.read(LIMIT_BYTES).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise _missing(file, what) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: the file must be text in UTF-8",
            given=f"byte {error.object[error.start]:#04x} at offset {error.start}",
            fix="save the file again as UTF-8",
        ) from error
    except (OSError, ValueError) as error:
        summary = f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(summary, given=repr(str(file)), fix="check the path and the permissions") from error


def _missing(file: Path, what: str) -> ConfigError:
    try:
        beside = sorted(path.name for path in file.parent.iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError:
        beside = []
    is_beside = os.path.isdir(file.parent)
    fix = "check the path" + ("" if is_beside else f": there is no directory {str(file.parent)!r}")
    if near := nearest(file.name, beside):
        fix = f"use {str(file.with_name(near))!r}"
    summary = f"{file}: there is no such file{did_you_mean(file.name, beside)}"
    expected = f"{what}; beside it are: {', '.join(beside[:10]) or 'none'}"
    return ConfigError(summary, given=f"{str(file)!r}, which is {str(file.absolute())!r}", expected=expected, fix=fix)


def _syntax_error(file: Path, text: str, error: Exception) -> ConfigError:
    what, line, column = _position(text, error)
    style = ".yaml" if file.suffix.lower() == ".yml" else file.suffix.lower()
    expected = f"a {style[1:].upper()} file with each key once"
    if _TOO_DEEP in what:
        what, expected = "nested too deeply", f"at most {LIMIT_DEPTH} tables and lists in each other"
    elif _HUGE in what:
        what, expected = "an integer has too many digits", f"at most {sys.get_int_max_str_digits():,} digits"
    given = "".join(c if c.isprintable() else "?" for c in text.split("\n")[line - 1].strip()[:120]) if line else ""
    hint = f" ({_HINTS[style]})" if expected.endswith("once") else ""
    correct = f"correct line {line}{hint}" if line else "correct it"
    summary = f"{file}: {f'line {line}, column {column}: ' if line else ''}{what}"
    fix = "keep one of the two" if what.startswith("the key ") else correct
    return ConfigError(summary, given=given, expected=expected, fix=fix)


_HINTS = {
    ".toml": 'text, and keys with "/" in them, need quotes',
    ".yaml": 'text such as "-" needs quotes',
    ".json": "keys and text need double quotes, the last item has no comma",
}


def _position(text: str, error: Exception) -> tuple[str, int, int]:
    """Return what a parser found, with line and column (from 1); line 0 when they are not known."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, error.lineno, error.colno
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return error.problem or "not YAML", error.problem_mark.line + 1, error.problem_mark.column + 1
    if isinstance(error, yaml.reader.ReaderError):
        return error.reason, *_line_and_column(text, error.position)
    if isinstance(error, tomllib.TOMLDecodeError):
        if found := re.search(r" \(at line (\d+), column (\d+)\)$", str(error)):
            return str(error)[: found.start()], int(found[1]), int(found[2])
        return str(error), *_line_and_column(text, len(text))
    return _TOO_DEEP if isinstance(error, RecursionError) else str(error), 0, 0


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice and what is too much, and says where a value cannot be made."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values: dict[int, int] = {}  # of each node, those that aliases stand for included

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark: Any = cast("Any", self).peek_event().start_mark
        self._depth += 1
        if self._depth > LIMIT_DEPTH:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if id(node) not in self._values and node is not None:
            inner = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            inner = () if isinstance(node, yaml.ScalarNode) else inner
            self._values[id(node)] = values = 1 + sum(self._values.get(id(one), 1) for one in inner)
            if values > LIMIT_VALUES:
                problem = f"says too much: more than {LIMIT_VALUES:,} values, with what aliases stand for"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return cast("Any", super()).construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            what = f"not a valid {node.tag.rpartition(':')[2]}: {error}"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from error


def _number(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """YAML 1.1 reads `1:30` as 90, in base 60; YAML 1.2 and users read text."""
    return lambda loader, node: node.value if ":" in node.value else construct(loader, node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number(yaml.SafeLoader.construct_yaml_int))
_Loader.add_constructor("tag:yaml.org,2002:float", _number(yaml.SafeLoader.construct_yaml_float))


def _parse_yaml(text: str) -> Any:
    table = yaml.load(text, _Loader)  # a SafeLoader: makes plain values only
    return {} if table is None else table


def _parse_json(text: str) -> Any:
    _check_depth(text)
    return json.loads(text, object_pairs_hook=_unique_keys)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a TOML text.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
    """
    _check_depth(text)
    return tomllib.loads(text)


def _check_depth(text: str) -> None:
    """Refuse brackets in each other, and keys with dots, of which tomllib takes quadratic time."""
    bare = _QUOTED.sub('""', text)
    brackets = max(itertools.accumulate(map(_STEPS.__getitem__, filter(_STEPS.__contains__, bare))), default=0)
    if brackets > LIMIT_DEPTH or max(key.count(".") for key in re.split(r"[=\n\[\]{},]", bare)) >= LIMIT_DEPTH:
        raise RecursionError


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} is given twice: {show(table[key])}, then {show(value)}")
        table[key] = value
    return table


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}

SUFFIXES = tuple(_PARSERS)
"""The suffixes of tables."""
