"""`keras-dist train`, `devices`, `doctor`, `migrate` and `convert`."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Annotated, Any, Literal

import typer

from keras_dist.cli.arguments import (
    AsJson,
    Config,
    Fake,
    Mesh,
    Settings,
    find_programs,
    load,
    show,
    show_toml,
    to_stderr,
)


def train(
    config: Config,
    mesh: Mesh = None,
    settings: Settings = None,
    fake: Fake = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="print all settings first, not only what differs from the defaults")
    ] = False,
) -> int:
    """Train the run of a config."""
    run = load(config, mesh, settings)
    from keras_dist import assembly
    from keras_dist.distribution.devices import use_cpu_devices

    if fake is not None:
        use_cpu_devices(fake)
    assembly.train(run, **({"show_defaults": True} if verbose else {}))
    return 0


def devices(fake: Fake = None, json: AsJson = False) -> int:
    """List devices, their meshes, and settings for fake devices."""
    from keras_dist.distribution.devices import report_devices, use_cpu_devices

    if fake is not None:
        use_cpu_devices(fake)
    show(report_devices(), json)
    return 0


def doctor(
    path: Annotated[str, typer.Argument(metavar="PATH", help="a directory of checkpoints, or the folder of one")],
    json: AsJson = False,
) -> int:
    """Examine a directory of checkpoints.

    The exit code is 0 if there are states and none is damaged, 1 if one is damaged, 2 without states. Damaged states
    that were moved aside are listed only. No device is started, nothing is changed.
    """
    from keras_dist.checkpoint import examine

    found = examine(path)
    show(found, json)
    return 2 if not found.states else 0 if found.is_good else 1


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
        pathlib.Path | None, typer.Option(metavar="RUN.TOML", help="a config with the model that the rules are for")
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

        find_programs()
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


def convert(
    source: Annotated[
        pathlib.Path, typer.Argument(metavar="MODEL.keras", exists=True, help="a model that Keras or KerasHub saved")
    ],
    target: Annotated[
        pathlib.Path, typer.Argument(metavar="TARGET", help="a file that ends in .safetensors, or a folder")
    ],
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="element type of floating-point weights, as bfloat16")
    ] = None,
    max_shard_size: Annotated[float | None, typer.Option(metavar="GB", help="size of the largest file")] = None,
) -> int:
    """Convert a model file of Keras to safetensors.

    Keras itself reads the file, on JAX, and refuses code in it. Weights have the paths of the model that Keras loads;
    Model.from_keras(such_a_model).load_weights(TARGET) reads them into shards. config.json beside them has Keras's
    config. Needs the extra keras.
    """
    from keras_dist._support.extras import import_extra
    from keras_dist.models import Model

    os.environ.setdefault("KERAS_BACKEND", "jax")
    with to_stderr():
        keras = import_extra("keras", "keras", "convert")
        loaded = keras.saving.load_model(source, compile=False, safe_mode=True)
        model = Model.from_keras(loaded)
        config = json.loads(loaded.to_json())
        model.save_weights(target, max_shard_size=max_shard_size, dtype=dtype, config=config)
    print(f"{target}: {len(model.weights)} weights, {model.count_params():,} numbers")
    return 0
