"""`keras-dist migrate`: the rules of a layout map of Keras or DTensor as those of a config."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any, Literal

import typer

from keras_dist.cli.arguments import AsJson, Mesh, Settings, load, show_toml, to_stderr


def migrate(
    source: Annotated[
        pathlib.Path,
        typer.Argument(metavar="MAP", help="a table of rules (TOML, YAML, JSON), or a Python file, which is not run"),
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

    Those of Keras or DTensor become the table [distribution.layout]. It goes to stdout, and what became of each rule to
    stderr. The exit code is 1 if a rule could not be read, or matches nothing of the model.
    """
    from keras_dist.config import migrate_layout_map

    known: dict[str, Any] = {}
    if config is not None:
        from keras_dist import assembly, planner

        with to_stderr():
            report = planner.check(**vars(assembly.plan_inputs(load(config, mesh, settings))))
        known = {"weights": report.weights, "tensors": report.tensors}
    found = migrate_layout_map(source, matching, **known)
    show_toml(found, json)
    return 1 if found.problems else 0
