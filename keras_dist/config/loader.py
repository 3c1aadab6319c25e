"""`load`: a config file, with what it includes and what overrides it, as a `RunConfig`."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from keras_dist._support.raw_errors import explained
from keras_dist.config.formats import LIMIT_DEPTH, MOST_NESTED, read_table
from keras_dist.config.mesh_shape import MESH_VARIABLE, parse_mesh_shape
from keras_dist.config.problems import (
    MISSING,
    Loc,
    Problem,
    as_table,
    as_tuple,
    config_error,
    key_path,
    pydantic_problems,
    show,
)
from keras_dist.config.schema import RunConfig
from keras_dist.errors import ConfigError, MeshError, with_type

_LIMIT_FILES, _LIMIT_VALUES, _LIMIT_BITS = 16, 2**15, 64
_SHAPES = (("mesh", "shape"), ("mesh", "dcn_shape"))
_SUBSTITUTES = {"callbacks": "History", "metrics": "keras_dist.assembly.distributions:any_loss"}
_COMPONENTS = (("model",), ("data",), ("optimizer",), ("training", "loss"))
_VARIABLE = re.compile(r"\$\$(?=\{)|\$\{([A-Za-z_]\w*)(?::-([^}$]*))?\}|\$\{")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OVERRIDE = re.compile(r"""((?:[^="']|"[^"]*"|'[^']*')+)=(.*)""", re.DOTALL)


@explained
def load(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> RunConfig:
    r"""Read a run from a TOML, YAML or JSON file.

    `include = ["base.toml"]` names base files, relative to this one; tables are merged key by key, and this file has
    precedence. `"${NAME}"` and `"${NAME:-default}"` are replaced by environment variables; a variable that is the whole
    value is parsed as TOML, so that `4` is a number. `"$${"` is a plain `"${"`.

    Args:
        path: the file; its suffix is the format.
        overrides: settings with precedence over the files, each a key path and a value in TOML, or else text:
            `"mesh.shape.data=4"`, `"optimizer=adam"`. They can change a size in a shape that is text, and add arguments
            to an object that is given by name: `"optimizer.learning_rate=1e-3"`.
        environ: environment variables, by default `os.environ`. `KERAS_DIST_MESH="data=4,model=2"` replaces
            `mesh.shape`, unless it is empty.

    Returns:
        The validated settings.

    Raises:
        ConfigError: a file cannot be read, is too large or has a syntax error, or a setting is missing, unknown or not
            allowed. One error lists up to 20 problems, each with its key path.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "run.toml")
        >>> _ = file.write_text('[mesh]\nshape = {data = 2, model = 4}')
        >>> load(file, environ={}).mesh.shape
        {'data': 2, 'model': 4}
        >>> load(file, ["mesh.shape.data=1", "training.epochs=3"], environ={}).mesh.shape
        {'data': 1, 'model': 4}
        >>> load(file, environ={"KERAS_DIST_MESH": "data=8,model=1"}).mesh.shape
        {'data': 8, 'model': 1}
    """
    found, error = load_valid(path, overrides, environ)
    if error is not None:
        raise error
    return cast("RunConfig", found)


def load_valid(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[RunConfig | None, ConfigError | None]:
    """Return the run as `load`, without settings that have problems, and the error; None if the rest is not enough."""
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]  # not all check types
        given, fix = f"path={with_type(path)}", 'for example path="run.toml"'
        raise ConfigError("`path` must be a path of a config file: a string, or a pathlib.Path", given=given, fix=fix)
    file, settings = os.fspath(path), _Settings(os.environ if environ is None else environ)
    settings.put_file(Path(file))
    mesh = settings.environ.get(MESH_VARIABLE, "").strip()
    if mesh and isinstance(settings.table.get("mesh", {}), dict | None):
        settings.put(("mesh", "shape"), mesh, MESH_VARIABLE)
    for override in overrides:
        settings.put(*_read_override(override), source=f"--set {override}")
    source = settings.source_of(("mesh", "shape"))
    context, placed, more = {"mesh": "mesh.shape" if source == file else source}, settings.problems, 0
    try:
        found = RunConfig.model_validate(settings.table, context=context)
    except ValidationError as error:
        problems, more = pydantic_problems(error, RunConfig, settings.table)
        known = {problem.loc for problem in placed}
        placed = [*placed, *(_placed(problem, settings) for problem in problems if problem.loc not in known)]
    else:
        if not placed:
            return found, None
    wrong = config_error(file, placed, more)
    for problem in placed:
        _remove(settings.table, problem.loc[:-1] if problem.what == MISSING else problem.loc)
    with contextlib.suppress(ValidationError):
        return RunConfig.model_validate(settings.table, context=context), wrong
    return None, wrong


def _remove(table: dict[Any, Any], loc: Loc) -> None:
    """Remove the value at a key path; of a value in a list, the list, except that components keep their numbers."""
    names = list(itertools.takewhile(lambda part: isinstance(part, str), loc))
    for part in names[:-1]:
        table = as_table(table.get(part)) or {}
    for name in names[-1:]:
        if name in _SUBSTITUTES and len(loc) > len(names) and isinstance(table.get(name), list):
            table[name][loc[len(names)]] = _SUBSTITUTES[name]
        else:
            table.pop(name, None)


def _placed(problem: Problem, settings: _Settings) -> Problem:
    """Add the source of the value to a problem, and the environment variable to one of the mesh."""
    if problem.loc in (("mesh",), ("mesh", "shape")) and problem.what == MISSING:
        given = f"nothing in the file, and no {MESH_VARIABLE} in the environment"
        return replace(problem, given=given, fix=f'{problem.fix}, or set {MESH_VARIABLE}="data=2,model=4"')
    return replace(problem, source=settings.source_of(problem.loc))


class _Settings:
    """Settings, merged from files, the environment and overrides."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.table: dict[Any, Any] = {}
        self.sources: dict[Loc, str] = {}
        self.problems: list[Problem] = []  # of environment variables in values
        self.environ = environ
        self._files = self._values = 0

    def source_of(self, loc: Loc) -> str:
        """Return the source of the value at a key path, or of the table around it."""
        return next((self.sources[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in self.sources), "")

    def put_file(self, file: Path, within: tuple[Path, ...] = ()) -> None:
        """Add the included files, then the file."""
        self._files += 1
        chain = " -> ".join(str(one) for one in (*within, file))
        if self._files > _LIMIT_FILES or any(file.samefile(one) for one in within if file.exists()):
            too_many = f"more than {_LIMIT_FILES} files are included"
            summary = f"{file}: {'includes itself' if self._files <= _LIMIT_FILES else too_many}"
            raise ConfigError(summary, given=chain, fix=f"remove {file.name} from include in {within[-1]}")
        try:
            table = self._filled(read_table(file), (), str(file))
        except ConfigError as error:
            error.given += f", included as {chain}" if within else ""
            raise
        given = table.pop("include", [])
        names: Any = as_tuple([given] if isinstance(given, str) else given)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in cast("tuple[Any, ...]", names)):
            what = "must be a list of files"
            wrong = Problem(("include",), what, show(given), "a list of paths", 'write ["base.toml"]')
            raise config_error(str(file), [wrong])
        for name in cast("tuple[str, ...]", names):
            self.put_file(file.parent / name, (*within, file))
        for key, value in table.items():
            self._merge(self.table, key, value, (str(key),), str(file))

    def put(self, loc: Loc, value: object, source: str) -> None:
        """Set the value at a key path."""
        table = self.table
        for n, part in enumerate(loc[:-1], 1):
            inner = _as_written_out(table.get(part), loc[:n])
            if inner is None:
                given = f"{key_path(loc[:n])} = {show(table[part])}"
                fix = f"replace the whole of {key_path(loc[:n])}, or correct the key path"
                raise ConfigError(f"{source}: {key_path(loc[:n])} is not a table", given=given, fix=fix)
            table[part] = table = inner
        table[loc[-1]] = value
        others = {one: other for one, other in self.sources.items() if one[: len(loc)] != loc}
        self.sources = others | {loc: source}

    def _merge(self, into: dict[Any, Any], key: Any, value: Any, loc: Loc, source: str) -> None:
        inner, table = as_table(into.get(key)), as_table(value)
        if inner is None or table is None:
            into[key], self.sources[loc] = value, source
        else:
            for name, item in table.items():
                self._merge(inner, name, item, (*loc, str(name)), source)

    def _filled(self, value: Any, loc: Loc, source: str) -> Any:
        """Copy a value, and replace environment variables in it."""
        self._values += 1  # aliases of YAML can stand for any number of values, or for themselves
        is_large = isinstance(value, int) and value.bit_length() > _LIMIT_BITS
        if is_large or len(loc) > LIMIT_DEPTH or self._values > _LIMIT_VALUES:
            large = ("is too large", show(value), f"at most {_LIMIT_BITS} bits", "write a smaller integer")
            deep = ("is nested too deeply", show(value), MOST_NESTED, "nest less")
            many = ("has too many values", show(value), f"at most {_LIMIT_VALUES:,}", "keep data in separate files")
            raise config_error(
                source, [Problem(loc, *(large if is_large else deep if len(loc) > LIMIT_DEPTH else many))]
            )
        if isinstance(value, str):
            self._check_text(value, loc, source)
            whole, text = _VARIABLE.fullmatch(value), self._with_variables(value, loc, source)
            return _read_value(text) if whole is not None and whole[1] else text
        if isinstance(value, list):
            return [self._filled(item, (*loc, n), source) for n, item in enumerate(cast("list[Any]", value))]
        table = as_table(value)
        if table is None:
            return value
        filled: dict[Any, Any] = {}
        for key, item in table.items():
            name = self._with_variables(key, (*loc, key), source) if isinstance(key, str) else show(key)
            name = _SURROGATE.sub("\ufffd", name)
            self._check_text(key, (*loc, name), source)
            filled[name] = self._filled(item, (*loc, name), source)
        return filled

    def _check_text(self, value: object, loc: Loc, source: str) -> None:
        """Note a key that is not text, as `yes` and `1` in YAML, and half of a pair of UTF-16."""
        if not isinstance(value, str):
            self.problems.append(Problem(loc, "the key is not text", show(value), "text", "write it in quotes", source))
        elif _SURROGATE.search(value):
            what, allowed = "has half of a surrogate pair", "characters of Unicode"
            self.problems.append(Problem(loc, what, ascii(show(value)), allowed, "write the whole character", source))

    def _with_variables(self, text: str, loc: Loc, source: str) -> str:
        wrong: dict[str, None] = {}

        def value_of(found: re.Match[str]) -> str:
            name, default = found.groups()
            if found[0] == "$$":
                return "$"
            if name and (name in self.environ or default is not None):
                return self.environ.get(name) or default or ""
            wrong[name or ""] = None
            return found[0]

        filled = _VARIABLE.sub(value_of, text)
        given = show(text) if wrong else ""
        for name in wrong:
            what = f"environment variable {name} is not set" if name else "`${` has no closing brace"
            fix = f"set {name}, or write ${{{name}:-default}}" if name else 'write "$${" for text'
            self.problems.append(Problem(loc, what, given, '"${NAME}" or "${NAME:-default}"', fix, source))
        return filled


def _as_written_out(value: object, loc: Loc) -> dict[Any, Any] | None:
    """Return the table at a key path, also of the text of a mesh shape, or the name of an object."""
    if isinstance(value, str) and loc in _SHAPES:
        try:
            return dict(parse_mesh_shape(value))
        except MeshError:
            return None
    if isinstance(value, str) and loc in _COMPONENTS:
        return {"name": value}
    return as_table({} if value is None else value)


def _read_value(text: str) -> Any:
    """Parse a value in TOML; return other text as it is."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _read_override(text: str) -> tuple[Loc, Any]:
    """Return the key path and the value of `mesh.shape.data=4`."""
    parts = _OVERRIDE.fullmatch(text)
    loc: tuple[str, ...] = ()
    try:
        keys: Any = tomllib.loads(f"{parts[1]} = 0") if parts else None
    except (ValueError, RecursionError):
        keys = None
    while isinstance(keys, dict) and len(cast("dict[str, Any]", keys)) == 1:
        ((key, keys),) = cast("dict[str, Any]", keys).items()
        loc = (*loc, key)
    if parts is None or keys != 0:
        fix = 'for example --set mesh.shape.data=4; keys with "/" in them need quotes'
        raise ConfigError(f"--set {text}: must be a key path, '=' and a value", given=repr(text), fix=fix)
    return loc, _read_value(parts[2].strip())
