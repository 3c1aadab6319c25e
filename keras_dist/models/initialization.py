"""The creation of a model's weights: a call for shapes builds the layers, and their variables are planned.

The arrays are created when one is needed. Weights that are added later, as by LoRA, are created here, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.signatures import keywords_taken
from keras_dist._support.types import PyTree
from keras_dist._unstable.flax_internals import in_trace_of, raw_value
from keras_dist.distribution.consistency import check_agreement, facts_of_config, facts_of_plan
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.tracing import traced_in, without_kernels
from keras_dist.errors import DistributionError, ModelError
from keras_dist.layers import Layer
from keras_dist.layers.base.attributes import undone_on_error
from keras_dist.layers.base.names import keras_paths
from keras_dist.layers.base.shape_calls import copy_for_shapes
from keras_dist.layers.base.weights import store_paths, walk, walk_owned
from keras_dist.models.model_base import ModelBase
from keras_dist.models.model_distribution import (
    distribution_now,
    distribution_of_layers,
    explaining_one_device,
    no_layout_yet,
    place_of,
)
from keras_dist.models.model_record import ModelRecord
from keras_dist.symbolic import shape_tracing
from keras_dist.symbolic.tensors import KerasTensor
from keras_dist.training.built_model import BuiltModel, describe
from keras_dist.training.graph import ArrayPosition, ModuleGraph, Trainable, positions_of, split_module
from keras_dist.training.naming import TrainableFlags, layers_below, named_layers, prefixes, with_keras_paths
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Forward
from keras_dist.variables import call_context
from keras_dist.variables.initial_values import Drawn, Wanted, create
from keras_dist.variables.lending import Lendable, shapes_only, switching
from keras_dist.variables.variable import Owners, Variable


def with_weights(model: ModelBase, *args: Any, **kwargs: Any) -> BuiltModel:
    """Return the built model; create its weights, if necessary, for a call with these arguments."""
    check_not_forked()
    if model._built is not None:
        return model._built
    record = model._record
    with in_trace_of(model):
        if record.source is None:
            inputs = None if model._graph is None else ((model._graph.on_devices.inputs,), {})
            return create_weights(model, *(inputs or _symbols_of_call(model, args, kwargs)))
        record.built = record.source.build(record.made_under or current_distribution())
        if record.choices is not None:
            record.built.compile(record.choices)
        return record.built


def build_for(model: ModelBase, tensors: PyTree) -> None:
    """Create the weights for such symbolic inputs, unless they exist."""
    if model._built is None:
        create_weights(model, (tensors,), {})


def await_layout(model: ModelBase) -> None:
    """Let values of the layers' variables raise an error until `AutoParallel` has found a layout."""
    if model._awaits_layout is not None:
        for parts, variable, owners in walk_owned(model):
            if isinstance(variable, Variable) and variable.is_deferred:
                variable.belong_to(owners, tree_paths.join(parts))


def _symbols_of_call(
    model: ModelBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace arrays in the arguments of a call by symbolic tensors."""
    args = () if args and args[0] is None else args
    if not jax.tree.leaves((args, kwargs)):
        summary = f"the weights of model {model.name!r} do not exist yet: it has seen no input"
        fix = "model.build((None, 28, 28, 1)), fit it, call it on an array, or start a Sequential with Input"
        raise ModelError(summary, given=f"a {type(model).__name__} without Input", fix=fix)
    kwargs = {name: value for name, value in kwargs.items() if name != "training"}
    return jax.tree.map(_tensor_for_batch, (args, kwargs))


def create_weights(model: ModelBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BuiltModel:
    """Create the weights of a model of layers for symbolic arguments; compile it, if `compile` was called.

    A call for shapes lets the layers build themselves. Their variables are numbered and planned, and created sharded.
    """
    check_not_forked()
    model._check_initialised()
    named_layers(model)
    record = model._record
    chosen = current_distribution() if record.made_under is None else record.made_under
    if chosen is not None and chosen.is_searched:
        raise no_layout_yet(f"model {model.name!r}, whose weights are created")
    seed, described = random.next_seed(), described_model(model, (args, kwargs), chosen)
    graph, distribution = described.graph, described.distribution
    with explaining_one_device(is_placed=described.is_placed):
        plan = distribution.plan_variables(graph.specs, graph.treedef)
    _check_meshes(model, plan)
    places = positions_of(model, graph.parts)
    for _, layer in layers_below(model):
        layer._is_built = layer._is_built or _is_model(layer)
    before = record.built_before
    if before is not None:
        before.cell.leave()

    def origin(place: ArrayPosition) -> str:
        initial = getattr(place.lendable, "initial", None)
        if not isinstance(initial, Drawn):
            return "set or read before"
        return "drawn" if initial.numbers[0] == seed else f"drawn from seed {initial.numbers[0]}"  # of a copied layer

    def origins() -> dict[str, str]:
        return {f"initial value of {row.path!r}": origin(at) for row, at in zip(plan.rows, places, strict=True)}

    def creation() -> None:
        facts = facts_of_config("model", model)
        check_agreement("create weights", plan.mesh, lambda: {**facts_of_plan(plan, seed), **facts, **origins()})
        create_arrays(places, plan.mesh)

    plan_arrays(model, places, plan, seed)
    cell = StateCell(graph, plan, places, f"model {model.name!r}", None if plan.mesh.is_abstract else creation)
    built = BuiltModel(cell=cell, distribution=distribution, seed=seed, model=model, compute_loss=_compute_loss)
    built.label_variables()
    register_layers(model, before, built)
    built.trainability = TrainableFlags(model, graph.specs)
    built.stated = built.trainability.stated()
    record.built, record.built_before, record.made_under = built, None, chosen
    record.built_for = args[0] if len(args) == 1 and not kwargs else None
    record.built_by_name = {} if record.built_for is not None else _tensors_by_name(model, args, kwargs)
    if record.choices is not None:
        built.compile(record.choices)
    model._after_creation(args, kwargs)
    return built


def plan_arrays(module: nnx.Module, places: Sequence[ArrayPosition], plan: LayoutPlan, seed: int) -> None:
    """Number the variables of a module, and give those without arrays their shardings.

    The numbers follow the order of their making, which is the same for all forms of a model.
    """
    shardings = {
        id(place.holder): sharding for place, sharding in zip(places, jax.tree.leaves(plan.shardings), strict=True)
    }
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


def create_arrays(places: Sequence[ArrayPosition], mesh: DeviceMesh) -> None:
    """Create the arrays of the variables at these places that have none."""
    found = (place.lendable for place in places)
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Described:
    """A model whose layers are built, and the distribution that it will have."""

    graph: ModuleGraph
    distribution: Distribution
    is_placed: bool


def described_model(
    model: ModelBase, arguments: tuple[tuple[Any, ...], dict[str, Any]], chosen: Distribution | None
) -> _Described:
    """Let the layers of a model build themselves for a call with these arguments, and describe their variables."""
    asked = chosen or _distribution_of_shared(model)
    chosen = asked or distribution_of_layers(model)
    distribution = distribution_now(chosen)
    _check_inner_models(model, distribution, chosen)
    before = _built_before(model)
    known = {tree_paths.join(parts) for parts, variable, owners in walk_owned(model) if _existed(variable, owners)}
    leaves, structure = jax.tree.flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, KerasTensor)]

    def call(arrays: list[jax.Array]) -> None:
        zeros = iter(arrays)
        args, kwargs = structure.unflatten([next(zeros) if isinstance(leaf, KerasTensor) else leaf for leaf in leaves])
        with random.key_stream(jax.random.key(0)), call_context.entered(False, anew=True) as context:
            context.sizes_of_unknown = shape_tracing.sizes_of_unknown([one.shape for one in tensors], arrays)
            copy = copy_for_shapes(model)
            copy(*args, **kwargs)
            _build_uncalled(copy)

    def trace(size: Any) -> None:
        with without_kernels():  # they need sizes
            run = functools.partial(shape_tracing.trace, functools.partial(jax.eval_shape, call), tensors, size)
            traced_in(distribution, None, run)

    try:
        trace(shape_tracing.symbolic_dim())
    except Exception:  # of any class: the code of a layer may need integers
        trace(shape_tracing.SIZES[0])
    store_paths(model)
    models = [layer for _, layer in layers_below(model) if _is_model(layer) and not layer._is_built]
    with shapes_only(), _built_in_graph(models):
        graph, _ = split_module(model, None, needs_values=False)
    named = keras_paths(model, known, before)
    module_paths = tuple(dict.fromkeys((*graph.module_paths, *named.layers.values())))
    graph = dataclasses.replace(graph, specs=with_keras_paths(graph.specs, named.weights), module_paths=module_paths)
    graph = dataclasses.replace(graph, trained=TrainableFlags(model, graph.specs).flags())
    found = place_of(asked, chosen, graph)
    return _Described(graph, distribution if found is chosen else distribution_now(found), chosen is not None)


def _is_model(layer: Layer) -> bool:
    """Return whether a layer is a model, whose `build` creates the weights of its layers."""
    return hasattr(type(layer).build, "creates_weights")


@contextlib.contextmanager
def _built_in_graph(models: Iterable[Layer]) -> Iterator[None]:
    """Context manager in which models are built, as they are in the graph of their model."""
    models = list(models)
    for one in models:
        one._is_built = True
    try:
        yield
    finally:
        for one in models:
            one._is_built = False


def _existed(variable: nnx.Variable, owners: Owners) -> bool:
    """Return whether a variable was made before its layer was called for shapes, as in a constructor."""
    layer = owners[0] if owners else None
    return variable.get_metadata("made_early", False) or not (layer and layer._record.built_for_shapes)


def _tensors_by_name(model: ModelBase, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, PyTree]:
    """Return the symbolic tensors in the arguments of a call, by parameter name."""
    signature = inspect.signature(model.call)
    named = {
        name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    arguments = signature.bind(*args, **kwargs).arguments
    return {name: value for name, value in arguments.items() if name in named and _are_tensors(value)}


def _are_tensors(value: PyTree) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, KerasTensor) for leaf in leaves)


def _built_before(model: ModelBase) -> dict[str, str | None]:
    """Return Keras's path, or None, of each layer that was built before the model, by its path."""
    found: dict[str, str | None] = {}
    for path, layer in layers_below(model):
        membership: Any = layer._record.membership
        is_own = membership is not None and membership.built is model._record.built_before
        if layer is not model and not is_own and layer._is_built and not layer._record.built_for_shapes:
            found[path] = layer.name if membership is None or not membership.prefix else None
    return found


def _build_uncalled(copy: nnx.Module) -> None:
    """Build functional models among the layers that only `compute_loss` or a step calls, such as a teacher."""
    for _, inner in layers_below(copy):
        graph = vars(inner).get("_graph")
        if graph is None or all(layer._is_built or layer._needs_no_building() for _, layer in layers_below(inner)[1:]):
            continue
        tensors, structure = jax.tree.flatten(graph.on_devices.inputs)

        def call(shapes: list[jax.ShapeDtypeStruct], inner: Layer = inner, structure: Any = structure) -> PyTree:
            return inner(structure.unflatten([jnp.zeros(leaf.shape, leaf.dtype) for leaf in shapes]))

        shape_tracing.trace(call, tensors)


def _check_meshes(model: ModelBase, plan: LayoutPlan) -> None:
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


def _distribution_of_shared(model: ModelBase) -> Distribution | None:
    """Return the distribution of another model that shares a layer; None without one."""
    layers = [layer for _, layer in layers_below(model) if layer is not model]
    if any(_made_under(layer) is not None for layer in layers):
        return None  # for `_check_inner_models`
    memberships: Any = (layer._record.membership for layer in layers)
    return next((membership.built.distribution for membership in memberships if membership is not None), None)


def _made_under(layer: Layer) -> Distribution | None:
    """Return the distribution that a model was made under; None without one, and for other layers."""
    record = layer._record
    return record.made_under if isinstance(record, ModelRecord) else None


def _check_inner_models(model: ModelBase, distribution: Distribution, chosen: Distribution | None) -> None:
    """Check that models among the layers have the distribution of the outer model, or weights already."""
    for path, inner in layers_below(model):
        asked = _made_under(inner)
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


def forward_of(model: ModelBase, x: PyTree, distribution: Distribution | None) -> Forward:
    """Return the forward pass of a model under a distribution, by default its own or the current one, abstractly."""
    remat = model._compile_config.remat if model._compile_config else None
    if model._built is not None:
        forward = model._built.forward
        return dataclasses.replace(forward, distribution=distribution or forward.distribution, remat=remat)
    model._check_initialised()
    asked = distribution or model._record.made_under or current_distribution()
    if model._record.source is not None:
        return dataclasses.replace(model._record.source.forward(asked), remat=remat)
    arguments = _symbols_of_call(model, (x,), {}) if model._graph is None else ((model._graph.on_devices.inputs,), {})
    described = described_model(model, arguments, asked)
    return Forward(
        graph=described.graph,
        distribution=described.distribution,
        seed=random.current_seed(),
        compute_loss=_compute_loss,
        remat=remat,
    )


def plan_before_search(model: ModelBase) -> LayoutPlan | None:
    """Return a plan of a model that awaits its layout, with replicated weights; None for others, or without inputs."""
    searched = model._awaits_layout
    if searched is None or (model._record.source is None and model._graph is None):
        return None
    distribution = ModelParallel(LayoutMap(searched.device_mesh))
    graph = forward_of(model, None, distribution).graph
    return distribution.plan_variables(graph.specs, graph.treedef)


def _compute_loss(module: Any, batch: tuple[PyTree, PyTree, PyTree], y_pred: PyTree, training: bool) -> jax.Array:
    x, y, sample_weight = batch
    given = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight, "training": training}
    return module.compute_loss(**keywords_taken(module.compute_loss, given))


def _tensor_for_batch(value: Any) -> Any:
    """Return the symbolic tensor for batches of rows like an array's; other values unchanged."""
    if not hasattr(value, "shape"):
        return value
    dtype = jax.dtypes.canonicalize_dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)
    return KerasTensor((None, *value.shape[1:]) if value.shape else (), dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelMembership:
    """The model of a layer, and the path of the layer in it."""

    built: BuiltModel
    prefix: str

    def handle(self, variable: nnx.Variable) -> Any:
        """Return the view of a foreign variable."""
        path = self.built.cell.path_of(variable)
        return variable if path is None else self.built.variable(path)

    def add_weights(self, layer: Layer, change: Callable[[], None]) -> None:
        """Let `change`, such as LoRA, add or replace weights of the layer, and update the model."""
        change_weights(self.built, {self.prefix: layer}, change)


def change_weights(
    built: BuiltModel, modules: Mapping[str, nnx.Module], change: Callable[[], None], trainable: Trainable = None
) -> None:
    """Let `change` add, replace or remove weights of these modules, by path, and update the model; all or nothing."""
    cell, name = built.cell, " ".join(modules)
    rows = (row for row in cell.plan.rows if not modules.keys().isdisjoint(prefixes(row.path)))
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
        if not plan.mesh.is_abstract:
            create_arrays(places, plan.mesh)
    built.extend(graph, plan)


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


def register_layers(model: Layer, before: BuiltModel | None, built: BuiltModel) -> None:
    """Register the model with its layers, except layers of another model."""
    for path, layer in layers_below(model):
        record: Any = layer._record
        membership = record.membership
        if membership is None or membership.built is before:
            record.membership = ModelMembership(built, path)
