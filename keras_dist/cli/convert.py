"""`keras-dist convert`."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Annotated

import typer

from keras_dist.cli.arguments import to_stderr


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
