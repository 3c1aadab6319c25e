"""`read_table`: TOML, YAML and JSON files as plain tables."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml

from keras_dist.config.problems import show
from keras_dist.errors import ConfigError, did_you_mean, nearest, shorten

LIMIT_BYTES = 2**17
LIMIT_DEPTH = 32
_LIMIT_MERGED, _LIMIT_PARTS = 2**13, 2**8


def read_table(file: Path, what: str = "a config file") -> dict[Any, Any]:
    """Return the table in a TOML, YAML or JSON file; an empty YAML file is an empty table. Errors name `what`."""
    if file.suffix.lower() not in _PARSERS and not os.path.isdir(file):
        summary = f"{file}: a config file must be named .toml, .yaml (or .yml) or .json"
        raise ConfigError(summary, given=f"suffix {file.suffix!r}", fix="rename the file to the format that it is in")
    text = _read_text(file, what)
    try:
        table = _PARSERS[file.suffix.lower()](text)
    except (ValueError, OverflowError, yaml.YAMLError, RecursionError) as error:
        raise _syntax_error(file, text, error) from error
    if not isinstance(table, dict):
        given, fix = show(table, with_type=True), "put everything under keys such as mesh and distribution"
        raise ConfigError(f"{file}: a config file must be a table of keys with values", given=given, fix=fix)
    return cast("dict[Any, Any]", table)


def _read_text(file: Path, what: str) -> str:
    given, size = repr(str(file)), os.path.getsize(file) if os.path.isfile(file) else 0
    if os.path.exists(file) and not os.path.isfile(file):
        what = "is a directory" if os.path.isdir(file) else "is not a regular file"
        raise ConfigError(f"{file}: {what}", given=given, fix="name a file")
    if size > LIMIT_BYTES:
        size, most = f"{size:,} bytes", f"at most {LIMIT_BYTES:,} bytes"
        raise ConfigError(f"{file}: is too large", given=size, expected=most, fix="keep data in separate files")
    try:
        with file.open("rb") as stream:
            return stream.read(LIMIT_BYTES).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise _missing(file, what) from error
    except UnicodeDecodeError as error:
        given = f"byte {error.object[error.start]:#04x} at offset {error.start}"
        summary, fix = f"{file}: the file must be text in UTF-8", "save the file again as UTF-8"
        raise ConfigError(summary, given=given, fix=fix) from error
    except (OSError, ValueError) as error:
        summary = f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(summary, given=repr(str(file)), fix="check the path and the permissions") from error


def _missing(file: Path, what: str) -> ConfigError:
    try:
        beside = sorted(path.name for path in file.parent.iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError:
        beside = []
    fix = "check the path" + ("" if file.parent.is_dir() else f": directory {str(file.parent)!r} does not exist")
    if near := nearest(file.name, beside):
        fix = f"use {str(file.with_name(near))!r}"
    summary = f"{file}: the file does not exist{did_you_mean(file.name, beside)}"
    expected = f"{what}; the directory has: {', '.join(beside[:10]) or 'none'}"
    return ConfigError(summary, given=f"{str(file)!r}, which is {str(file.absolute())!r}", expected=expected, fix=fix)


def _syntax_error(file: Path, text: str, error: Exception) -> ConfigError:
    message, line, column = _position(text, error)
    style = ".yaml" if file.suffix.lower() == ".yml" else file.suffix.lower()
    lines = re.split(_YAML_BREAK if style == ".yaml" else "\n", text)
    given = "".join(c if c.isprintable() else "?" for c in lines[line - 1].strip()[:120]) if line else ""
    expected, fix = f"a {style[1:].upper()} file", f"correct {f'line {line}' if line else 'it'} ({_HINTS[style]})"
    for pattern, words, *ways in _MESSAGES:
        if re.search(pattern, message):
            message, (expected, fix) = re.sub(pattern, words, message), ways
            break
    summary = f"{file}: {f'line {line}, column {column}: ' if line else ''}{message}"
    return ConfigError(summary, given=given, expected=expected, fix=fix)


_YAML_BREAK = "\r\n|[\n\r\x85\u2028\u2029]"
MOST_NESTED = f"at most {LIMIT_DEPTH} tables and lists in each other"
_ONCE = ("each key, table and anchor once", "keep one of the two")
_NO_TAG = ("text, numbers, true, false, null, lists and tables, without tags", "leave out the tag")
_MESSAGES = (
    ("^maximum recursion depth.*", "nested too deeply", MOST_NESTED, "nest less"),
    ("^merge keys have .*", r"\g<0>", f"at most {_LIMIT_MERGED:,} values by <<", "write keys out where they are used"),
    ("^a key has too many parts", r"\g<0>", f"at most {_LIMIT_PARTS} parts with dots between", "write a shorter key"),
    (".*Exceeds the limit.*", "an integer of more than 4,300 digits", "at most 64 bits", "write a smaller integer"),
    (".*(chr\\(\\) arg|C int).*", "an escape is not a character", r"at most \U0010ffff", "correct the escape"),
    ("^the key .* is given twice", r"\g<0>", *_ONCE),
    ("^(Cannot (overwrite|mutate|declare)|Duplicate|second occ).*", "a key, table or anchor is given twice", *_ONCE),
    ("^but found another document", "a second document begins", "one document", "keep one of the documents"),
    ("^found unhashable key", "a key is a list or a table", "keys that are text", "write the key as text"),
    ("^expected a .* for merging.*", "<< needs tables", "a table, or a list of tables", "give the alias of a table"),
    (r"^could not determine .* tag '(?:tag:yaml\.org,2002:)?(.*)'", r"the tag '\1' is not available", *_NO_TAG),
    (r"^expected a .*(mapping|scalar|sequence|items)\b.*", "the value does not fit its tag", *_NO_TAG),
    ("^(not a valid |failed to convert).*", r"\g<0>", _NO_TAG[0], "put it in quotes, or leave out its tag"),
)
"""Messages of parsers in our words, with what is expected and the way out where these are known."""

_HINTS = {
    ".toml": 'text, and keys with "/" in them, need quotes',
    ".yaml": 'text such as "-" needs quotes',
    ".json": "keys and text need double quotes, the last item has no comma",
}


def _position(text: str, error: Exception) -> tuple[str, int, int]:
    """Return the message of a parser, with line and column from 1; line 0 if not known."""
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
    return str(error), 0, 0


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


class _Loader(yaml.SafeLoader):
    """`SafeLoader` that refuses a key given twice, and reports where a value cannot be constructed."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"the key {shorten(key.value)} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node

    merged = 0  # pairs by merge keys, which nest

    def flatten_mapping(self, node: Any) -> None:
        for key, value in [pair for pair in node.value if pair[0].tag == "tag:yaml.org,2002:merge"]:
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(one, yaml.MappingNode):
                    self.flatten_mapping(one)
                    self.merged += len(one.value)
                if self.merged > _LIMIT_MERGED:
                    raise yaml.MarkedYAMLError(problem="merge keys have too many values", problem_mark=key.start_mark)
        super().flatten_mapping(node)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return cast("Any", super()).construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            what = str(error) if "Exceeds" in str(error) else f"not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from error


def _number(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # YAML 1.1 reads `1:30` as 90, in base 60; YAML 1.2 reads text
    return lambda loader, node: node.value if ":" in node.value else construct(loader, node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number(yaml.SafeLoader.construct_yaml_int))
_Loader.add_constructor("tag:yaml.org,2002:float", _number(yaml.SafeLoader.construct_yaml_float))


_PARTS = r"""(?<![\w\\-])(?:(?:"(?:\\.|[^"\\\n])*+"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+)"""


def _parse_toml(text: str) -> Any:
    if many := re.search(f"{_PARTS}{{{_LIMIT_PARTS}}}", text):  # tomllib takes memory with the square of their number
        line, column = _line_and_column(text, many.start())
        raise tomllib.TOMLDecodeError(f"a key has too many parts (at line {line}, column {column})")
    return tomllib.loads(text)


def _parse_yaml(text: str) -> Any:
    table = yaml.load(text, _Loader)
    return {} if table is None else table


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {shorten(key)} is given twice: {show(table[key])}, then {show(value)}")
        table[key] = value
    return table


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}

SUFFIXES = tuple(_PARSERS)  # suffixes of config files
