"""The creation of a model's weights: a call for shapes builds the layers, and their variables are planned.

`StateCell` calls `creation` when an array is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from keras_dist import random
from keras_dist._unstable.flax_internals import in_trace_of, raw_value
from keras_dist.distribution.consistency import check_agreement, facts_of_config, facts_of_plan
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.layers.base.names import layers_below, named_layers
from keras_dist.layers.base.weights import walk
from keras_dist.models.abstract_models import arguments_of, compute_loss, note_arguments, traced_for_shapes
from keras_dist.models.model_base import ModelBase
from keras_dist.models.model_distribution import explaining_one_device, no_layout_yet
from keras_dist.models.shared_layers import check_meshes, register_layers
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import ArrayPosition, positions_of
from keras_dist.training.state_cell import StateCell
from keras_dist.variables.initial_values import Drawn, Wanted, create
from keras_dist.variables.lending import switching
from keras_dist.variables.variable import Variable


def with_weights(model: ModelBase, *args: Any, **kwargs: Any) -> BuiltModel:
    """Return the built model; create its weights, if necessary, for a call with these arguments."""
    check_not_forked()
    if model._built is not None:
        return model._built
    record = model._record
    with in_trace_of(model):
        if record.source is None:
            return create_weights(model, *arguments_of(model, args, kwargs))
        record.built = record.source.build(record.made_under or current_distribution())
        if record.compile_config is not None:
            record.built.compile(record.compile_config)
        return record.built


def create_weights(model: ModelBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BuiltModel:
    """Create the weights of a model of layers for symbolic arguments; compile it, if `compile` was called.

    A call for shapes lets the layers build themselves. Their variables are numbered and planned, and created sharded.
    """
    check_not_forked()
    named_layers(model)
    record = model._record
    chosen = current_distribution() if record.made_under is None else record.made_under
    if chosen is not None and chosen.is_searched:
        raise no_layout_yet(f"model {model.name!r}, whose weights are created")
    seed, described = random.next_seed(), traced_for_shapes(model, (args, kwargs), chosen)
    graph, distribution = described.graph, described.distribution
    with explaining_one_device(is_placed=described.is_placed):
        plan = distribution.plan_variables(graph.specs, graph.treedef)
    check_meshes(model, plan)
    positions = positions_of(model, graph.parts)
    for _, layer in layers_below(model):
        layer._is_built = layer._is_built or layer._creates_weights()
    before = record.built_before
    if before is not None:
        before.cell.leave()

    plan_arrays(model, positions, plan, seed)
    creation = None if plan.mesh.is_abstract else creation_of(model, plan, positions, seed)
    cell = StateCell(graph, plan, positions, f"model {model.name!r}", creation)
    built = BuiltModel(cell=cell, distribution=distribution, seed=seed, model=model, compute_loss=compute_loss)
    built.label_variables()
    register_layers(model, before, built)
    built.trainability, built.stated = described.trainability, described.trainability.stated()
    record.built, record.built_before, record.made_under = built, None, chosen
    note_arguments(model, args, kwargs)
    if record.compile_config is not None:
        built.compile(record.compile_config)
    return built


def creation_of(
    model: ModelBase, plan: LayoutPlan, positions: Sequence[ArrayPosition], seed: int
) -> Callable[[], None]:
    """Return a function that creates the arrays at these positions, after all processes agree on them."""

    def creation() -> None:
        facts = facts_of_config("model", model)
        origins = functools.partial(_origins, plan, positions, seed)
        check_agreement("create weights", plan.mesh, lambda: {**facts_of_plan(plan, seed), **facts, **origins()})
        create_arrays(positions, plan.mesh)

    return creation


def _origins(plan: LayoutPlan, positions: Sequence[ArrayPosition], seed: int) -> dict[str, str]:
    """Return the origins of initial values, which all processes must have in common."""
    found: dict[str, str] = {}
    for row, position in zip(plan.rows, positions, strict=True):
        initial = getattr(position.lendable, "initial", None)
        origin = f"drawn from seed {initial.numbers[0]}" if isinstance(initial, Drawn) else "set or read before"
        found[f"initial value of {row.path!r}"] = origin.removesuffix(f" from seed {seed}")  # others: of copied layers
    return found


def plan_arrays(module: nnx.Module, positions: Sequence[ArrayPosition], plan: LayoutPlan, seed: int) -> None:
    """Number the variables of a module, and give those without arrays their shardings.

    The numbers follow the order of their making, which is the same for all forms of a model.
    """
    holders = (position.holder for position in positions)
    shardings = dict(zip(map(id, holders), jax.tree.leaves(plan.shardings), strict=True))
    variables = [variable for _, variable in walk(module) if isinstance(variable, Variable)]
    numbers: dict[int, int] = {}
    for number, variable in enumerate(sorted(variables, key=lambda variable: variable.serial)):
        if variable.is_deferred and not variable.keepers:
            initial = variable.initial
            if isinstance(initial, Drawn):
                number = number if initial.group is None else numbers.setdefault(id(initial.group), number)
                variable.begin_with(initial.numbered((seed, number)))
            raw = raw_value.__get__(variable)
            variable.keep(jax.ShapeDtypeStruct(raw.shape, raw.dtype, sharding=shardings[id(variable)]))


def create_arrays(positions: Sequence[ArrayPosition], mesh: DeviceMesh) -> None:
    """Create the arrays of the variables at these positions that have none."""
    found = (position.lendable for position in positions)
    with switching:
        variables = [variable for variable in found if isinstance(variable, Variable) and variable.is_deferred]
        shapes = [raw_value.__get__(variable) for variable in variables]
        wanted = [
            Wanted(one.initial, raw.shape, raw.dtype, raw.sharding) for one, raw in zip(variables, shapes, strict=True)
        ]
    for variable, one, array in zip(variables, wanted, create(wanted, mesh), strict=True):
        variable.keep_created(array, one.initial)
        if variable.is_deferred:  # another thread has set a value meanwhile
            variable.create_alone()
