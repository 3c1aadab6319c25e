"""Changes of the weights of a model that has weights, as by LoRA."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.stateless_scope import shapes_only
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.base.attributes import undone_on_error
from keras_dist.layers.base.names import keras_paths, with_keras_paths
from keras_dist.models.model_base import ModelBase
from keras_dist.models.weight_creation import create_arrays, creation_of, plan_arrays
from keras_dist.training.graph import Trainable, positions_of, split_module
from keras_dist.variables import call_context
from keras_dist.variables.lending import Lendable


def change_weights(
    model: ModelBase, modules: Mapping[str, nnx.Module], change: Callable[[], None], trainable: Trainable = None
) -> None:
    """Let `change` add, replace or remove weights of these modules, by path, and update the model; all or nothing."""
    built, name = model._with_weights(), " ".join(modules)
    cell = built.cell
    rows = (row for row in cell.plan.rows if not modules.keys().isdisjoint(tree_paths.prefixes(row.path)))
    variables = [(row.path, cell.held(row.path)) for row in rows]
    shared = [path for path, variable in variables if isinstance(variable, Lendable) and len(variable.keepers) > 1]
    if cell.is_training or shared:
        given = f"{shared[0]!r}, which another model shares" if shared else "a model that is being trained"
        fix = "do it before the second model is made" if shared else "do it after fit has ended"
        which = "the model" if "" in modules else f"layer {name!r}"
        raise ModelError(f"cannot change the weights of {which} now", given=given, fix=fix)
    seed = np.uint32((built.seed + zlib.crc32(name.encode())) % 2**32)  # distinct for each layer
    with contextlib.ExitStack() as undo:
        for module in modules.values():
            undo.enter_context(undone_on_error(module))
        created = call_context.entered(False, anew=True)
        with _outside_of_models(modules.values()), random.key_stream(jax.random.key(seed)), created:
            change()
        with shapes_only():
            graph, _ = split_module(built.model, trainable, needs_values=False)
        names = keras_paths(built.model).weights
        names |= {spec.path: spec.keras_path or spec.path for spec in cell.graph.specs}
        specs = with_keras_paths(graph.specs, names)
        graph = dataclasses.replace(graph, specs=specs, module_paths=cell.graph.module_paths)
        plan = built.distribution.plan_variables(graph.specs, graph.treedef)
        places = positions_of(built.model, graph.parts)
        plan_arrays(built.model, places, plan, int(seed))
        if cell.has_arrays and not plan.mesh.is_abstract:
            create_arrays(places, plan.mesh)
    built.extend(graph, plan, creation_of(model, plan, places, built.seed))


@contextlib.contextmanager
def _outside_of_models(modules: Iterable[nnx.Module]) -> Iterator[None]:
    """Take layers out of their models inside: a layer of a model may not change its attributes."""
    records: list[Any] = [module._record for module in modules if isinstance(module, Layer)]
    memberships = [record.membership for record in records]
    try:
        for record in records:
            record.membership = None
        yield
    finally:
        for record, membership in zip(records, memberships, strict=True):
            record.membership = membership
