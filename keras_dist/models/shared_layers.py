"""The models that a layer is in: its path in the first one, and the distribution and mesh that all of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import nnx

from keras_dist._support import tree_paths
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import DistributionError
from keras_dist.layers import Layer
from keras_dist.layers.base.names import layers_below
from keras_dist.layers.base.weights import walk
from keras_dist.models.model_base import ModelBase
from keras_dist.training.built_model import BuiltModel, describe
from keras_dist.variables.lending import Lendable


@dataclasses.dataclass(frozen=True, eq=False)
class ModelMembership:
    """The model of a layer, and the path of the layer in it."""

    model: ModelBase
    built: BuiltModel
    prefix: str

    def handle(self, variable: nnx.Variable) -> Any:
        """Return the view of a foreign variable."""
        path = self.built.cell.path_of(variable)
        return variable if path is None else self.built.variable(path)

    def note_symbols(self) -> None:
        """Let a `Sequential` without an Input call its layers on symbolic tensors."""
        _ = self.model._symbols

    def add_weights(self, layer: Layer, change: Callable[[], None]) -> None:
        """Let `change`, such as LoRA, add or replace weights of the layer, and update the model."""
        self.model._change_weights({self.prefix: layer}, change)


def register_layers(model: ModelBase, before: BuiltModel | None, built: BuiltModel) -> None:
    """Register the model with its layers, except layers of another model."""
    for path, layer in layers_below(model):
        record: Any = layer._record
        membership = record.membership
        if membership is None or membership.built is before:
            record.membership = ModelMembership(model, built, path)


def check_meshes(model: ModelBase, plan: LayoutPlan) -> None:
    """Check that variables shared with other models are on the mesh of this model."""
    before = model._record.built_before
    for parts, variable in walk(model):
        cells = variable.keepers if isinstance(variable, Lendable) else []
        cells = [cell for cell in cells if before is None or cell is not before.cell]
        if cells and cells[0].mesh != plan.mesh:
            name, other = f"model {model.name!r}", cells[0].owner
            other = f"another {name}" if other == name else other
            summary = f"{name} and {other} have layers in common, but are on different meshes"
            given = f"{tree_paths.join(tree_paths.visible(parts))!r} on mesh {plan.mesh}, and on {cells[0].mesh}"
            fix = "make both models under one distribution, or this one of a copy: keras_dist.models.clone_model(model)"
            raise DistributionError(summary, given=given, fix=fix)


def distribution_of_shared(model: ModelBase) -> Distribution | None:
    """Return the distribution of another model that shares a layer; None without one."""
    records = [layer._record for _, layer in layers_below(model) if layer is not model]
    if any(getattr(record, "made_under", None) is not None for record in records):
        return None  # for `check_inner_models`
    memberships: Any = (record.membership for record in records)
    return next((membership.built.distribution for membership in memberships if membership is not None), None)


def check_inner_models(model: ModelBase, distribution: Distribution, chosen: Distribution | None) -> None:
    """Check that models among the layers have the distribution of the outer model, or weights already."""
    for path, inner in layers_below(model):
        asked: Distribution | None = getattr(inner._record, "made_under", None)  # of models
        if inner is model or asked is None or asked == distribution or (inner._built and chosen is not None):
            continue
        if asked.is_searched:  # it follows the outer model
            continue
        raise DistributionError(
            f"model {inner.name!r} was made under another distribution than model {model.name!r}, whose layer it is",
            given=f"{path!r} of {describe(asked)}",
            expected=describe(distribution) if chosen is not None else "no distribution, as for the outer model",
            fix="make both under one distribution: with distribution.scope(): ...",
        )
