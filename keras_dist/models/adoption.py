"""Transfer of a model's weights from a built copy to its layers, and weights that are added later.

NNX forbids changing objects in a trace that were made outside. So a model copies its layers inside a trace, builds the
copies, creates all weights in compiled programs, and moves what building made to the layers of the user. Weights made
by the layers themselves would be whole on one device.
"""

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support.lending import Lendable
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.attributes import undone_on_error
from keras_dist.layers.names import keras_paths
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import Trainable, split_module
from keras_dist.training.naming import layers_below, prefixes, with_keras_paths
from keras_dist.variables import call_context


@dataclasses.dataclass(frozen=True, eq=False)
class ModelMembership:
    """The model of a layer, and the path of the layer in it."""

    session: BuiltModel
    prefix: str

    def handle(self, variable: nnx.Variable) -> Any:
        """Return the view of a foreign variable."""
        path = self.session.cell.path_of(variable)
        return variable if path is None else self.session.variable(path)

    def add_weights(self, layer: Layer, change: Callable[[], None]) -> None:
        """Let `change`, such as LoRA, add or replace weights of the layer, and update the model."""
        change_weights(self.session, {self.prefix: layer}, change)


def change_weights(
    session: BuiltModel, modules: Mapping[str, nnx.Module], change: Callable[[], None], trainable: Trainable = None
) -> None:
    """Let `change` add, replace or remove weights of these modules, by path, and update the model; all or nothing."""
    cell, name = session.cell, " ".join(modules)
    rows = (row for row in cell.plan.rows if not modules.keys().isdisjoint(prefixes(row.path)))
    variables = [(row.path, cell.held(row.path)) for row in rows]
    shared = [path for path, variable in variables if isinstance(variable, Lendable) and len(variable.keepers) > 1]
    if cell.is_training or shared:
        given = f"{shared[0]!r}, which another model shares" if shared else "a model that is being trained"
        fix = "do it before the second model is made" if shared else "do it after fit has ended"
        which = "the model" if "" in modules else f"layer {name!r}"
        raise ModelError(f"cannot change the weights of {which} now", given=given, fix=fix)
    seed = np.uint32((session.seed + zlib.crc32(name.encode())) % 2**32)  # distinct for each layer
    with contextlib.ExitStack() as undo:
        for module in modules.values():
            undo.enter_context(undone_on_error(module))
        created = call_context.entered(False, anew=True)
        with _outside_of_models(modules.values()), random.key_stream(jax.random.key(seed)), created:
            change()
        graph, _ = split_module(session.model, trainable, needs_values=False)
        names = keras_paths(session.model).weights
        names |= {spec.path: spec.keras_path or spec.path for spec in cell.graph.specs}
        specs = with_keras_paths(graph.specs, names)
        graph = dataclasses.replace(graph, specs=specs, module_paths=cell.graph.module_paths)
        plan = session.distribution.plan_variables(graph.specs, graph.treedef)
    session.extend(graph, plan)


@contextlib.contextmanager
def _outside_of_models(modules: Iterable[nnx.Module]) -> Iterator[None]:
    """Take layers out of their models inside: a layer of a model may not change its attributes."""
    runtimes: list[Any] = [module._runtime for module in modules if isinstance(module, Layer)]
    memberships = [runtime.membership for runtime in runtimes]
    try:
        for runtime in runtimes:
            runtime.membership = None
        yield
    finally:
        for runtime, membership in zip(runtimes, memberships, strict=True):
            runtime.membership = membership


def settle(model: Layer, before: BuiltModel | None, session: BuiltModel) -> None:
    """Register the model with its layers, except layers of another model."""
    for path, layer in layers_below(model):
        runtime: Any = layer._runtime
        membership = runtime.membership
        if membership is None or membership.session is before:
            runtime.membership = ModelMembership(session, path)
