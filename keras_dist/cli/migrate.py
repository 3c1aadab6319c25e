"""`keras-dist migrate`: from a layout map of Keras or DTensor to rules of a config."""

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
            help="how its rules match: whole paths, as in Keras since February 2026; parts of paths, as in Keras 3 "
            "before; beginnings of paths with dots, as in Keras 2 and DTensor. By default search, or match if a rule "
            "is a path with dots"
        ),
    ] = None,
    config: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="RUN.TOML", help="a config with the model that the rules are for"),
    ] = None,
    mesh: Mesh = None,
    settings: Settings = None,
    json: AsJson = False,
) -> int:
    """Turn a layout map into rules of a config.

    stdout has the table [distribution.layout], stderr each old rule with its new form. An import path runs its module.
    The exit code is 1 if a rule cannot be read, or matches nothing in the model.
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
