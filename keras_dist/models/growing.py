"""Further weights for a layer of a model whose weights exist, as `enable_lora` makes them."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist import _paths, random
from keras_dist._types import PyTree
from keras_dist.errors import ModelError
from keras_dist.layers import call_context
from keras_dist.layers.names import keras_paths
from keras_dist.layers.weights import tell_paths, walk
from keras_dist.models.naming import is_below, with_keras_paths
from keras_dist.models.session import Session
from keras_dist.training.graph import trace_factory


def grow(session: Session, prefix: str, find: Callable[[Any], Any], change: Callable[[Any], None]) -> None:
    """Change which weights a layer of a model has.

    Args:
        session: of the model.
        prefix: the path of the layer.
        find: gives the layer in the model's module.
        change: is given that layer, adds weights to it and exchanges others.

    Raises:
        LayoutError: the layout rules cannot be applied to the new weights; nothing has changed then.
        ModelError: fit is running, or another model shares weights of the layer.
    """
    cell, before = session.cell, session.cell.graph
    _check_alone(session, prefix)
    built: dict[str, Any] = {}

    def factory(rngs: nnx.Rngs) -> Any:
        empty = [jax.lax.empty(spec.shape, spec.dtype) for spec in before.specs]
        module = before.merge(*before.nest(empty))
        with random.key_stream(rngs.default.key[...]), call_context.entered(False, anew=True):
            change(find(module))
        tell_paths(module)
        built["order"] = [_paths.join(parts) for parts, one in walk(module) if not isinstance(one, nnx.RngState)]
        built["names"] = keras_paths(module).weights
        return module

    graph, init = trace_factory(factory, None)
    in_keras = built["names"] | {spec.path: spec.keras_path or spec.path for spec in before.specs}
    specs = with_keras_paths(graph.specs, in_keras)
    graph = dataclasses.replace(graph, specs=specs, module_paths=before.module_paths)
    plan = session.distribution.plan_variables(graph.specs, graph.treedef)
    shardings = jax.tree.leaves(plan.shardings)
    new = [index for index, parts in enumerate(graph.parts) if parts not in before.parts]

    def draw(seed: jax.Array) -> PyTree:
        leaves = jax.tree.leaves(init(seed))
        return [leaves[index] for index in new]

    seed = np.uint32((session.seed + zlib.crc32(prefix.encode())) % 2**32)  # another one for each layer
    drawn = jax.jit(draw, out_shardings=[shardings[index] for index in new])(seed)
    values = dict(zip(before.parts, cell.leaves(), strict=True))
    values |= {graph.parts[index]: array for index, array in zip(new, drawn, strict=True)}
    leaves = [jax.device_put(values[parts], at) for parts, at in zip(graph.parts, shardings, strict=True)]
    names = {path: known_as.rpartition("/")[2] for path, known_as in built["names"].items()}
    session.extend(graph, plan, leaves, built["order"], names)


def _check_alone(session: Session, prefix: str) -> None:
    cell = session.cell
    paths = [row.path for row in cell.plan.rows if is_below(row.path, prefix)]
    shared = [path for path in paths if cell.is_shared(path)]
    if cell.is_training or shared:
        raise ModelError(
            f"the weights of layer {prefix!r} cannot become others now",
            given=f"{shared[0]!r}, which another model shares" if shared else "a model that is being trained",
            expected="a layer of one model, which is not training",
            fix="do it before the second model is made" if shared else "do it when fit is through",
        )
