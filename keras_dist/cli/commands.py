"""`keras-dist train`, `devices`, `doctor` and `convert`."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Annotated

import typer

from keras_dist.cli.arguments import AsJson, Config, Fake, Mesh, Settings, load, show, to_stderr


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
