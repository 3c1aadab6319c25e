"""`load`: a config file, with what the environment overrides, as a `RunConfig`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from keras_dist.config.formats import read_table
from keras_dist.config.mesh_shape import parse_mesh_shape
from keras_dist.config.problems import MISSING, Problem, config_error, pydantic_problems
from keras_dist.config.schema import RunConfig, as_table, axis_problems, option_problems
from keras_dist.errors import ConfigError, MeshError, shorten

MESH_VARIABLE = "KERAS_DIST_MESH"


def load(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> RunConfig:
    r"""Return the settings in a TOML, YAML or JSON file.

    Args:
        path: the file; its suffix tells the format.
        overrides: what `--set` says: `"mesh.shape.data=4"`, a key path and a TOML value; else text.
        environ: the environment, by default `os.environ`. `KERAS_DIST_MESH="data=4,model=2"` in it replaces
            `mesh.shape`, which the file then need not give. An empty value replaces nothing.

    Returns:
        The settings, checked as a whole.

    Raises:
        ConfigError: the file cannot be read or is not in its format, or something in it is missing, unknown or not
            allowed. One error lists all that was found, each with its key path.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "run.toml")
        >>> _ = file.write_text('[mesh]\nshape = {data = 2, model = 4}')
        >>> load(file, environ={}).mesh.shape
        {'data': 2, 'model': 4}
        >>> load(file, environ={"KERAS_DIST_MESH": "data=8,model=1"}).mesh.shape
        {'data': 8, 'model': 1}
    """
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]  # not all check types
        raise ConfigError(
            "`path` is no path of a config file",
            given=f"path={shorten(path)} of type {type(path).__name__}",
            expected="a string, or a pathlib.Path",
            fix='for example path="run.toml"',
        )
    table = read_table(Path(path))
    override = (os.environ if environ is None else environ).get(MESH_VARIABLE, "").strip()
    if override and isinstance(table.get("mesh", {}), dict | None):
        table["mesh"] = {**(table.get("mesh") or {}), "shape": override}
    try:
        return RunConfig.model_validate(table)
    except ValidationError as error:
        problems = [_place(problem, bool(override)) for problem in pydantic_problems(error, RunConfig)]
        problems += _problems_across(table, bool(override))
    raise config_error(os.fspath(path), problems)


def _place(problem: Problem, overridden: bool) -> Problem:
    """`problem` with the part that the environment has in it."""
    if overridden and problem.loc[:2] == ("mesh", "shape"):
        return replace(problem, source=MESH_VARIABLE)
    if problem.loc in (("mesh",), ("mesh", "shape")) and problem.what == MISSING:
        given = f"nothing in the file, and no {MESH_VARIABLE} in the environment"
        return replace(problem, given=given, fix=f'{problem.fix}, or set {MESH_VARIABLE}="data=2,model=4"')
    return problem


def _problems_across(table: Mapping[Any, Any], overridden: bool) -> Iterator[Problem]:
    options = as_table(table.get("distribution"))
    if options is None:
        return
    yield from option_problems(options)
    axes = _axes(table.get("mesh"))
    if axes:
        yield from axis_problems(axes, options, MESH_VARIABLE if overridden else "mesh.shape")


def _axes(mesh: object) -> list[str]:
    """Return the axis names in `[mesh]` that can be read."""
    shape: object = (as_table(mesh) or {}).get("shape")
    if isinstance(shape, str):
        try:
            shape = parse_mesh_shape(shape)
        except MeshError:
            return []
    return [name for name in as_table(shape) or () if isinstance(name, str)]
