"""`read_layout_map`: the rules of a layout map of Keras or DTensor, from a table or from a program that is not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from keras_dist.config.formats import SUFFIXES, read_table, read_text
from keras_dist.config.problems import show
from keras_dist.config.schema import RunConfig
from keras_dist.errors import ConfigError

Entry = str | tuple[str, ...] | None
Axes = tuple[Entry, ...]
"""For each dim an axis of the mesh, several axes, or None."""

_UNSHARDED = (None, "unsharded", "-")
_WRITTEN_OUT = re.compile(r"sharding_specs:(\S*)")  # as DTensor prints a layout
_EXPECTED = "a list or tuple with an axis, several axes or None for each dim, or a Layout made of such"
_LAYOUT_MAP = "a layout map: a table of rules (.toml, .yaml, .yml or .json), or a program in Python (.py)"
_OF_MODELS = (".keras", ".h5", ".hdf5", ".safetensors", ".orbax")
_MOST_DIMS = 32
_DEEPEST = 20


def read_layout_map(file: Path) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a layout map in the order in which they are added, and what could not be read.

    Args:
        file: a TOML, YAML or JSON file with a table of rules, which may lie in other tables, as in
            `[distribution.layout]`. Or a Python file: of it, what is assigned to keys counts, as in
            `layout_map["d1/kernel"] = (None, "model")`, or else what its dicts hold. It is parsed and not run: layouts
            are lists and tuples, and calls of `TensorLayout`, `Layout` and its `replicated`, `batch_sharded` and
            `inner_sharded`.

    Raises:
        ConfigError: the file cannot be read, or there is no rule in it.
    """
    suffix = file.suffix.lower()
    if suffix not in (".py", *SUFFIXES) and file.is_file():
        is_model = suffix in _OF_MODELS
        raise ConfigError(
            f"{file}: not a layout map by its name",
            given=f"suffix {file.suffix!r}{', of files of models and weights' if is_model else ''}",
            expected=_LAYOUT_MAP,
            fix="name the program or the table in which the rules are: models are saved without them"
            if is_model
            else "rename the file to the format that it is in",
        )
    rules, problems = _table(file) if suffix in SUFFIXES else _python(file)
    if not rules and not problems:
        fix = 'name a file with {"d1/kernel" = ["-", "model"]}, or a program with m["d1/kernel"] = (None, "model")'
        raise ConfigError(f"{file}: there is no rule of a layout map", given=f"{str(file)!r}", fix=fix)
    return rules, problems


def _table(file: Path) -> tuple[dict[str, Axes], list[str]]:
    table = read_table(file, _LAYOUT_MAP, (".py",))
    while len(table) == 1 and isinstance(inner := next(iter(table.values())), dict):
        table = cast("dict[Any, Any]", inner)
    rules: dict[str, Axes] = {}
    problems: list[str] = []
    for rule, value in table.items():
        try:
            rules[str(rule)] = _axes(value)
        except ValueError:
            problems.append(f"rule {str(rule)!r}: expected {_EXPECTED}, got {show(value)}")
    if not rules and {"class_name", "config"} <= {*table}:
        given = f"class_name={show(table['class_name'])}"
        fix = "name the program or the table in which the rules are: configs of Keras hold none"
        raise ConfigError(f"{file} is the config of an object of Keras, not a layout map", given=given, fix=fix)
    if not rules and {*table} & {*RunConfig.model_fields}:
        given = f"settings {', '.join(map(str, table))}"
        fix = f"`keras-dist check {file}` tries its rules; older rules migrate from a file of their own"
        raise ConfigError(f"{file} is the config of a run, not a layout map", given=given, fix=fix)
    return rules, problems


def _axes(value: object) -> Axes:
    """Return a layout as axes.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str) and (found := _WRITTEN_OUT.match(value)):
        value = [part for part in found[1].split(",") if part]
    if not isinstance(value, list | tuple):
        raise ValueError("no list")
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
    raise ValueError("no axis")


def _python(file: Path) -> tuple[dict[str, Axes], list[str]]:
    text = read_text(file, _LAYOUT_MAP, (".py",))
    try:
        program = _Program(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what, line = (error.msg, error.lineno) if isinstance(error, SyntaxError) else ("nested too deeply", None)
        given = f"{str(file)!r}, read as a program in Python"
        fix = "correct it, or copy the rules into a file of their own"
        raise ConfigError(f"{file}: {f'line {line}: ' if line else ''}{what}", given=given, fix=fix) from error
    return program.rules, program.problems


class _Program:
    """The rules in a program, which is not run.

    Attributes:
        rules: what is assigned to keys, else what is in dicts.
        problems: layouts that cannot be told without running it.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.rules: dict[str, Axes] = {}
        self.problems: list[str] = []
        self._known: dict[str, object] = {}
        self._maps: set[str] = set()
        dicts: list[ast.Dict] = []
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Dict)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(node, ast.Dict):
                dicts.append(node)
            else:
                self._assign(node.targets[0], node.value)
        for node in dicts if not self.rules and not self.problems else ():
            pairs = zip(node.keys, node.values, strict=True)
            try:
                self.rules |= {self._key(key): _axes(self._value(value)) for key, value in pairs}
            except ValueError:
                continue  # another dict

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, ast.Call) and _last_name(value.func) == "LayoutMap":
                self._maps.add(target.id)
            try:
                self._known[target.id] = self._value(value)
            except ValueError:
                self._known.pop(target.id, None)
        elif isinstance(target, ast.Subscript):
            is_map = _last_name(target.value) in {*self._maps, "layout_map"}
            try:
                key = self._key(target.slice)
                self.rules[key] = _axes(self._value(value))
            except ValueError:
                if is_map:
                    source = " ".join(ast.unparse(target).split()), " ".join(ast.unparse(value).split())
                    self.problems.append(f"line {target.lineno}: {source[0]} = {source[1][:80]}: expected {_EXPECTED}")

    def _key(self, node: ast.expr | None) -> str:
        key = None if node is None else self._value(node)
        if not isinstance(key, str):
            raise ValueError("no rule")
        return key

    def _value(self, node: ast.expr, depth: int = 0) -> object:
        """Return the value of an expression of which it is known.

        Raises:
            ValueError: it is not.
        """
        if depth > _DEEPEST:
            raise ValueError("too deep")
        match node:
            case ast.Constant(value=str() | int() | None as value):
                return value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [self._value(part, depth + 1) for part in parts]
            case ast.Attribute(attr="UNSHARDED") | ast.Name(id="UNSHARDED"):
                return None
            case ast.Name(id=name) if name in self._known:
                return self._known[name]
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                entries, times = self._value(left, depth + 1), self._value(right, depth + 1)
                if isinstance(entries, list) and isinstance(times, int) and 0 <= times <= _MOST_DIMS:
                    return cast("list[object]", entries)[:_MOST_DIMS] * times
            case ast.Call(func=function, args=args, keywords=keywords):
                given = {word.arg: word.value for word in keywords if word.arg}
                return self._layout(_last_name(function), args, given, depth + 1)
            case _:
                pass
        raise ValueError("not known")

    def _layout(self, name: str, args: Sequence[ast.expr], given: Mapping[str, ast.expr], depth: int) -> list[object]:
        """Return the axes that a call gives."""

        def argument(position: int, *names: str) -> object:
            nodes = [*args[position : position + 1], *(given[name] for name in names if name in given)]
            if not nodes:
                raise ValueError("missing")
            return self._value(nodes[0], depth)

        if name in ("Layout", "TensorLayout"):
            return [*_axes(argument(0, "axes", "sharding_specs"))]
        if name == "replicated":
            return [None] * _rank(argument(1, "rank"))
        if name in ("batch_sharded", "inner_sharded"):
            rank = _rank(argument(2, "rank"))
            at = 0 if name == "batch_sharded" else rank - 1
            if name == "batch_sharded" and (len(args) > 3 or "axis" in given):
                at = _rank(argument(3, "axis"), 0)
            if at < rank:
                return [None] * at + [argument(1, "batch_dim", "inner_dim", "dim")] + [None] * (rank - 1 - at)
        raise ValueError("no layout")


def _rank(value: object, low: int = 1) -> int:
    if not isinstance(value, int) or not low <= value <= _MOST_DIMS:
        raise ValueError("no rank")
    return value


def _last_name(node: ast.expr) -> str:
    """`Layout` of `dtensor.Layout`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
