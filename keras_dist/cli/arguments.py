"""Arguments and helpers of several commands."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from keras_dist.config import RunConfig

Config = Annotated[pathlib.Path, typer.Argument(metavar="RUN.TOML", help="the config of a run: TOML, YAML or JSON")]
Mesh = Annotated[
    str | None,
    typer.Option("--mesh", metavar="data=4,model=2", help="mesh shape that replaces the shape in the config"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="replaces a value of the config, as mesh.shape.data=4; repeatable"),
]
Fake = Annotated[int | None, typer.Option("--fake", min=1, metavar="N", help="number of fake CPU devices to use")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, and nothing else")]


def to_stderr() -> contextlib.AbstractContextManager[Any]:
    """Send output of models and data to stderr; stdout is for the report of the command."""
    return contextlib.redirect_stdout(sys.stderr)


def show(report: Any, as_json: bool) -> None:
    """Print a report as text or as JSON."""
    print(json.dumps(report.to_dict(), indent=2, default=list) if as_json else report)


def show_toml(found: Any, as_json: bool, config: pathlib.Path = pathlib.Path("run.toml")) -> None:
    """Print a part of a config, in its format, to stdout and its explanation to stderr, or both as JSON."""
    if as_json:
        return show(found, as_json)
    with to_stderr():  # tables fit the width of stderr
        print(found)
    print(of_config(found.to_toml().rstrip(), config))


def of_config(toml: str, config: pathlib.Path) -> str:
    """Return a part of a config in the format of this config."""
    if config.suffix.lower() == ".toml":
        return toml
    if config.suffix.lower() == ".json":
        return json.dumps(tomllib.loads(toml), indent=2)
    import yaml

    return yaml.safe_dump(tomllib.loads(toml), sort_keys=False, default_flow_style=None).rstrip()


def find_programs() -> None:
    """Let a config name modules of the current folder, as `python -m` does; other commands run nothing in it."""
    if not sys.flags.safe_path:
        sys.path.insert(0, "")


def load(path: pathlib.Path, mesh: str | None, settings: Sequence[str] | None, is_ours: bool = False) -> RunConfig:
    """Return the config of a run, with the values of the options."""
    from keras_dist import config

    if not is_ours:
        find_programs()
    return config.load(path, overrides(mesh, settings))


def overrides(mesh: str | None, settings: Sequence[str] | None) -> list[str]:
    """Return the values of the options as overrides of a config."""
    return [*([] if mesh is None else [f"mesh.shape={mesh}"]), *(settings or ())]
