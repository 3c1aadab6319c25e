"""`keras-dist migrate`: the rules of a layout map of Keras or DTensor as those of a config."""

from __future__ import annotations

import os
import pathlib
from typing import Annotated, Any, Literal

import typer

from keras_dist.cli.arguments import AsJson, Mesh, Settings, load, show_toml, to_stderr


def migrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MAP", help="a table of rules (TOML, YAML, JSON), or the import path of a map, package.module:NAME"
        ),
    ],
    matching: Annotated[
        Literal["fullmatch", "search", "match"] | None,
        typer.Option(
            help="how its rules match: the whole path, as in Keras since February 2026; a part of it, as in Keras 3 "
            "before; the beginning of a path with dots, as in Keras 2 and DTensor. By default what they look like, "
            "match or search"
        ),
    ] = None,
    config: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="RUN.TOML", help="a config whose model the rules are for, and are tried on"),
    ] = None,
    mesh: Mesh = None,
    settings: Settings = None,
    json: AsJson = False,
) -> int:
    """Turn a layout map into rules of a config.

    The rules of a map of Keras or DTensor become the table [distribution.layout] on stdout; stderr shows each old rule
    beside its new one. An import path runs its module. The exit code is 1 if a rule could not be read, or matches
    nothing of the model.
    """
    from keras_dist.config import migrate_layout_map

    layout_map: Any = source
    if ":" in source and not os.path.exists(source):
        from keras_dist import assembly

        with to_stderr():
            layout_map = assembly.imported(source, "MAP")
    known: dict[str, Any] = {}
    if config is not None:
        from keras_dist import assembly, planner

        with to_stderr():
            report = planner.check(**vars(assembly.plan_inputs(load(config, mesh, settings))))
        known = {"weights": report.weights, "tensors": report.tensors}
    found = migrate_layout_map(layout_map, matching, **known)
    show_toml(found, json)
    return 1 if found.problems else 0
