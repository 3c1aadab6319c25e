"""Further weights for a layer of a model whose weights exist, as `enable_lora` makes them."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from keras_dist import random
from keras_dist._support.lending import Lendable
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.names import keras_paths
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import split_module
from keras_dist.training.naming import is_below, with_keras_paths
from keras_dist.variables import call_context


def add_weights(session: BuiltModel, prefix: str, layer: Layer, change: Callable[[], None]) -> None:
    """Let `change` add weights to a layer of a built model, and exchange others; `prefix` is the path of the layer."""
    cell, model = session.cell, session.model
    _check_alone(session, prefix)
    seed = np.uint32((session.seed + zlib.crc32(prefix.encode())) % 2**32)  # another one for each layer
    runtime: Any = layer._runtime
    membership, runtime.membership = runtime.membership, None  # for which its attributes may not change
    try:
        with random.key_stream(jax.random.key(seed)), call_context.entered(False, anew=True):
            change()
    finally:
        runtime.membership = membership
    graph, _ = split_module(model, None)
    names = keras_paths(model).weights | {spec.path: spec.keras_path or spec.path for spec in cell.graph.specs}
    graph = dataclasses.replace(graph, specs=with_keras_paths(graph.specs, names), module_paths=cell.graph.module_paths)
    session.extend(graph, session.distribution.plan_variables(graph.specs, graph.treedef))


def _check_alone(session: BuiltModel, prefix: str) -> None:
    cell = session.cell
    paths = [row.path for row in cell.plan.rows if is_below(row.path, prefix)]
    variables = [(path, cell.held(path)) for path in paths]
    shared = [path for path, variable in variables if isinstance(variable, Lendable) and len(variable.keepers) > 1]
    if cell.is_training or shared:
        given = f"{shared[0]!r}, which another model shares" if shared else "a model that is being trained"
        fix = "do it before the second model is made" if shared else "do it when fit is through"
        raise ModelError(f"the weights of layer {prefix!r} cannot become others now", given=given, fix=fix)
