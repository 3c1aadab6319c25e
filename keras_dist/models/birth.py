"""The birth of a model's weights: from layers, which describe them, to arrays, sharded as planned."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist import _paths, random
from keras_dist._signatures import keywords_taken
from keras_dist.distribution.plan import Row
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import DistributionError, ModelError
from keras_dist.layers import Layer, call_context, stand_ins
from keras_dist.layers.blueprint import fresh_copy
from keras_dist.layers.symbolic import KerasTensor
from keras_dist.layers.weights import children_of, keras_name, tell_paths, walk
from keras_dist.models.home import settle
from keras_dist.models.naming import is_below, layers_below, layers_in, number_names
from keras_dist.models.session import Session, describe, distribution_now, told_of_one_device
from keras_dist.models.trainability import Trainability
from keras_dist.training.graph import ModuleGraph, trace_factory
from keras_dist.training.state_cell import StateCell

Check = Callable[[Sequence[VariableSpec]], None]

_check: contextvars.ContextVar[Check] = contextvars.ContextVar("check_of_births", default=lambda specs: None)


@contextlib.contextmanager
def births_checked(check: Check) -> Iterator[None]:
    """Call `check(specs)` before weights of models of layers are born in this context, also inside of other models."""
    before = _check.set(check)
    try:
        yield
    finally:
        _check.reset(before)


def give_birth(
    model: Layer, arguments: tuple[tuple[Any, ...], dict[str, Any]], seed: int, chosen: Distribution | None
) -> Session:
    """Create the weights of a model.

    Args:
        model: the root of the layers.
        arguments: positional ones and those by name, as the model takes them, with symbolic tensors for arrays.
        seed: fixes the initial values.
        chosen: the distribution; None for that of a model with which it shares layers, else the first device.

    Raises:
        DistributionError: a model among the layers was made under another distribution.
        LayoutError: the layout rules cannot be applied.
        ModelError: a layer does not take its input.
    """
    chosen = chosen or _distribution_of_shared(model)
    distribution = distribution_now(chosen)
    _check_inner_models(model, distribution, chosen)
    known: dict[_paths.Parts, Any] = {}
    built: dict[str, Any] = {}
    leaves, structure = jax.tree.flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, KerasTensor)]

    def trace(shapes: list[jax.ShapeDtypeStruct]) -> Any:
        def factory(rngs: nnx.Rngs) -> Any:
            del rngs  # keys are drawn in the order in which weights are created: the same for all forms of a model
            copy, values = fresh_copy(model)
            known.update(values)
            zeros = iter([jnp.zeros(leaf.shape, leaf.dtype) for leaf in shapes])
            filled = [next(zeros) if isinstance(leaf, KerasTensor) else leaf for leaf in leaves]
            args, kwargs = structure.unflatten(filled)
            with random.key_stream(seed), call_context.entered(False, anew=True) as context:
                traced_in(distribution, None, lambda: copy(*args, **kwargs))
            for variable, value in context.created:
                variable.set_raw_value(value)  # whatever the call has assigned
            for _, variable in walk(copy):
                if _is_rng(variable) and variable.tag == "seed_generator_state":
                    variable.set_raw_value(variable[...] * jnp.array([1, 0], jnp.uint32))  # or drawn
            built["order"] = [_paths.join(parts) for parts, variable in walk(copy) if not _is_rng(variable)]
            built["names"] = dict(_keras_names(copy))
            tell_paths(copy)
            return copy

        return trace_factory(factory, seed, None)

    graph, init = stand_ins.trace(trace, tensors)
    if any(size is None for tensor in tensors for size in tensor.shape[1:]):
        other, _ = stand_ins.trace(trace, tensors, stand_ins.SIZES[1])
        _check_known_sizes(graph, other, tensors)
    graph = dataclasses.replace(graph, specs=tuple(_with_alias(spec, built["names"]) for spec in graph.specs))
    aliases = (f"{model.name}/{path}".rstrip("/") for path in graph.module_paths)
    graph = dataclasses.replace(graph, module_paths=(*graph.module_paths, *aliases))
    graph = dataclasses.replace(graph, trained=Trainability(model, graph.specs).flags())
    with told_of_one_device(chosen):
        plan = distribution.plan_variables(graph.specs, graph.treedef)
    _check.get()(graph.specs)
    cell = StateCell(graph, plan, plan.init(init))
    names = {path: known_as.rpartition("/")[2] for path, known_as in built["names"].items()}
    if known:
        indices = {parts: index for index, parts in enumerate(graph.parts)}
        cell.write_all({indices[parts]: value for parts, value in known.items()})
    session = Session(cell, _call, distribution, seed, built["order"], _compute_loss, names)
    _link(model, session)
    settle(model, graph.described(), session, instead_of=getattr(model, "_session_before", None))
    object.__setattr__(model, "_session_before", None)
    session.trainability = Trainability(model, graph.specs)
    session.stated = session.trainability.stated()
    return session


def _distribution_of_shared(model: Layer) -> Distribution | None:
    """The distribution of the model in which the first of the layers lives already; None where none does.

    Models among the layers are for `_check_inner_models`.
    """
    layers = [layer for _, layer in layers_below(model) if layer is not model]
    if any(getattr(layer, "_made_under", None) is not None for layer in layers):
        return None
    homes = (getattr(layer, "_home", None) for layer in layers)
    return next((home.session.distribution for home in homes if home is not None), None)


def _check_inner_models(model: Layer, distribution: Distribution, chosen: Distribution | None) -> None:
    """Check that the models among the layers are to live where the outer one does, or have weights of their own.

    Raises:
        DistributionError: one was made under another distribution.
    """
    for path, inner in layers_below(model):
        asked = getattr(inner, "_made_under", None)
        has_weights = getattr(inner, "_session", None) is not None
        if inner is model or asked is None or asked == distribution or (has_weights and chosen is not None):
            continue
        raise DistributionError(
            f"model {inner.name!r} was made under another distribution than model {model.name!r}, whose layer it is",
            given=f"{path!r} of {describe(asked)}",
            expected=describe(distribution) if chosen is not None else "no distribution, as for the outer model",
            fix="make both under one distribution: with distribution.scope(): ...",
        )


def _check_known_sizes(graph: ModuleGraph, other: ModuleGraph, tensors: Sequence[KerasTensor]) -> None:
    """Check that no weight's shape depends on a dim of unknown size.

    Raises:
        ModelError: one does.
    """
    for spec, again in zip(graph.specs, other.specs, strict=True):
        if spec.shape != again.shape:
            shape = tuple(m if m == n else None for m, n in zip(spec.shape, again.shape, strict=True))
            raise ModelError(
                f"the shape of weight {spec.path!r} follows from a dim of unknown size",
                given=f"shape {shape} for inputs {[tensor.shape for tensor in tensors]}",
                expected="a size for each dim that weights depend on",
                fix="give the dim a size in Input(shape), or pool over it first",
            )


def _link(model: Any, session: Session) -> None:
    """Share the variables of layers that live in other models already."""
    cell = session.cell
    by_other: dict[int, tuple[StateCell, dict[int, int]]] = {}
    for path, layer in layers_below(model):
        home = getattr(layer, "_home", None)
        if home is None:
            continue
        other = home.session.cell
        pairs = by_other.setdefault(id(other), (other, {}))[1]
        for row in cell.plan.rows:
            if is_below(row.path, path):
                inner = row.path[len(path) :].lstrip("/")
                theirs = other.row(f"{home.prefix}/{inner}".lstrip("/"))
                _check_same_shape(layer, row, theirs)
                pairs[cell.index(row.path)] = other.index(theirs.path)
    for other, pairs in by_other.values():
        cell.link(other, pairs)


def _check_same_shape(layer: Any, row: Row, theirs: Row) -> None:
    if row.shape != theirs.shape or row.dtype != theirs.dtype:
        raise ModelError(
            f"layer {layer.name!r} has weights for other inputs than it gets here",
            given=f"{row.path!r} would be {row.dtype} of shape {row.shape}",
            expected=f"{theirs.dtype} of shape {theirs.shape}, as {theirs.path!r} of the model that it lives in",
            fix="give it inputs of the same shape, or make another layer",
        )


def _keras_names(root: Any) -> list[tuple[str, str]]:
    """For each variable its path, and the one that Keras gives it: names of layers, then of the weight."""
    found: list[tuple[str, str]] = []

    seen: set[int] = set()

    def visit(node: Any, path: str, name: str, names: Mapping[int, str]) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, Layer):
            name = f"{name}/{names.get(id(node), node.name)}".lstrip("/")
            names = {id(layer): given for given, layer in number_names(layers_in(node)).items()}
        for key, child in children_of(node):
            inner = path if key == _paths.MEMBERS else f"{path}/{key}".lstrip("/")
            if isinstance(child, nnx.Variable):
                found.append((inner, f"{name}/{keras_name(child) or key}"))
            else:
                visit(child, inner, name, names)

    visit(root, "", "", {})
    return found


def _with_alias(spec: VariableSpec, names: dict[str, str]) -> VariableSpec:
    aliases = dict.fromkeys((*spec.aliases, names.get(spec.path, spec.path)))
    return dataclasses.replace(spec, aliases=tuple(name for name in aliases if name != spec.path))


def _call(module: Any, x: Any, training: bool, rngs: nnx.Rngs) -> Any:
    del rngs  # layers carry their own streams
    return module(x, training=training)


def _compute_loss(module: Any, batch: tuple[Any, Any, Any], y_pred: Any, training: bool) -> Any:
    x, y, sample_weight = batch
    given = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight, "training": training}
    return module.compute_loss(**keywords_taken(module.compute_loss, given))


def _is_rng(variable: Any) -> bool:
    return isinstance(variable, nnx.RngState)
