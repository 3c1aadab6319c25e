"""Models without arrays: a call for shapes lets the layers build themselves, and describes their variables."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.signatures import keywords_taken
from keras_dist._support.stateless_scope import shapes_only
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.model_parallel import ModelParallel
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.tracing import traced_in, without_kernels
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.base.names import keras_paths, layers_below, named_layers, with_keras_paths
from keras_dist.layers.base.shape_calls import copy_for_shapes, stacked_dims
from keras_dist.layers.base.weights import walk_owned
from keras_dist.models.model_base import ModelBase
from keras_dist.models.model_distribution import distribution_now, distribution_of_graph, distribution_of_layers
from keras_dist.models.shared_layers import check_inner_models, distribution_of_shared
from keras_dist.symbolic import shape_tracing
from keras_dist.symbolic.tensors import KerasTensor
from keras_dist.training.graph import ModuleGraph, split_module
from keras_dist.training.step import Forward
from keras_dist.training.trainable_flags import TrainableFlags
from keras_dist.variables import call_context
from keras_dist.variables.variable import Owners, Variable

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(model: ModelBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return the symbolic arguments of a call: the inputs of the model, or such as these arrays."""
    if model._graph is not None:
        return (model._graph.on_devices.inputs,), {}
    args = () if args and args[0] is None else args
    if not jax.tree.leaves((args, kwargs)):
        summary = f"the weights of model {model.name!r} do not exist yet: it has seen no input"
        fix = "model.build((None, 28, 28, 1)), fit it, call it on an array, or start a Sequential with Input"
        raise ModelError(summary, given=f"a {type(model).__name__} without Input", fix=fix)
    kwargs = {name: value for name, value in kwargs.items() if name != "training"}
    return jax.tree.map(_tensor_for_batch, (args, kwargs))


def _tensor_for_batch(value: Any) -> Any:
    """Return the symbolic tensor for batches of rows like an array's; other values unchanged."""
    if not hasattr(value, "shape"):
        return value
    dtype = jax.dtypes.canonicalize_dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)
    return KerasTensor((None, *value.shape[1:]) if value.shape else (), dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class TracedModel:
    """A model whose layers are built, and the distribution that it will have."""

    graph: ModuleGraph
    trainability: TrainableFlags
    distribution: Distribution
    is_placed: bool


def traced_for_shapes(model: ModelBase, arguments: Arguments, chosen: Distribution | None) -> TracedModel:
    """Let the layers of a model build themselves for a call with these arguments, and describe their variables."""
    asked = chosen or distribution_of_shared(model)
    chosen = asked or distribution_of_layers(model)
    distribution = distribution_now(chosen)
    check_inner_models(model, distribution, chosen)
    before = _keras_paths_of_built(model)
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
    for parts, variable, _ in walk_owned(model):
        if isinstance(variable, Variable):
            variable.set_metadata("keras_path", tree_paths.join(parts))  # for copies in traces
    models = [layer for _, layer in layers_below(model) if layer._creates_weights() and not layer._is_built]
    with shapes_only(), _built_in_graph(models):
        graph, _ = split_module(model, None, needs_values=False)
    named = keras_paths(model, known, before)
    module_paths = tuple(dict.fromkeys((*graph.module_paths, *named.layers.values())))
    graph = dataclasses.replace(graph, specs=with_keras_paths(graph.specs, named.weights), module_paths=module_paths)
    trainability = TrainableFlags(model, graph.specs)
    graph = dataclasses.replace(graph, trained=trainability.flags())
    found = distribution_of_graph(asked, chosen, graph)
    distribution = distribution if found is chosen else distribution_now(found)
    return TracedModel(graph, trainability, distribution, chosen is not None)


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


def _keras_paths_of_built(model: ModelBase) -> dict[str, str | None]:
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


def forward_on(model: ModelBase, x: PyTree, distribution: Distribution | None) -> Forward:
    """Return the forward pass of a model under a distribution, by default its own or the current one, abstractly."""
    remat = model._compile_config.remat
    if model._built is not None:
        forward = model._built.forward
        return dataclasses.replace(forward, distribution=distribution or forward.distribution, remat=remat)
    model._check_initialised()
    asked = distribution or model._record.made_under or current_distribution()
    if model._record.source is not None:
        return dataclasses.replace(model._record.source.forward(asked), remat=remat)
    described = traced_for_shapes(model, arguments_of(model, (x,), {}), asked)
    return Forward(
        graph=described.graph,
        distribution=described.distribution,
        seed=random.current_seed(),
        compute_loss=compute_loss,
        remat=remat,
    )


def plan_before_search(model: ModelBase) -> LayoutPlan | None:
    """Return a plan of a model that awaits its layout, with replicated weights; None for others, or without inputs."""
    searched = model._awaits_layout
    if searched is None or (model._record.source is None and model._graph is None):
        return None
    distribution = ModelParallel(LayoutMap(searched.device_mesh))
    graph = forward_on(model, None, distribution).graph
    return distribution.plan_variables(graph.specs, graph.treedef)


def compute_loss(module: Any, batch: tuple[PyTree, PyTree, PyTree], y_pred: PyTree, training: bool) -> jax.Array:
    """Return the loss of a batch by the model's `compute_loss`."""
    x, y, sample_weight = batch
    given = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight, "training": training}
    return module.compute_loss(**keywords_taken(module.compute_loss, given))


@hides_mesh
def complete(model: ModelBase) -> None:
    """Number the layers of a new model, and plan its weights if it knows its inputs."""
    model._check_initialised()
    named_layers(model)
    if model._graph is not None and model._awaits_layout is None and not stacked_dims():
        model._with_weights()
    await_layout(model)


def await_layout(model: ModelBase) -> None:
    """Let values of the layers' variables raise an error until `AutoParallel` has found a layout."""
    if model._awaits_layout is not None:
        for parts, variable, owners in walk_owned(model):
            if isinstance(variable, Variable) and variable.is_deferred:
                variable.belong_to(owners, tree_paths.join(parts))


def note_arguments(model: ModelBase, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Note the symbolic arguments for which weights are created: one alone, or else by parameter name."""
    record = model._record
    record.built_by_name = {}
    record.built_for = args[0] if len(args) == 1 and not kwargs else None
    if record.built_for is not None:
        return
    signature = inspect.signature(model.call)
    named = {
        name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    arguments = signature.bind(*args, **kwargs).arguments
    record.built_by_name = {name: value for name, value in arguments.items() if name in named and _are_tensors(value)}


def _are_tensors(value: PyTree) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, KerasTensor) for leaf in leaves)
