"""The birth of a model's weights: from layers, which describe them, to arrays, sharded as planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist import _paths, random
from keras_dist.distribution.plan import Row
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import ModelError
from keras_dist.layers import Layer, call_context
from keras_dist.layers.blueprint import fresh_copy
from keras_dist.layers.symbolic import other_stand_in_for, stand_in_for
from keras_dist.layers.weights import children_of, keras_name, walk
from keras_dist.models.home import settle
from keras_dist.models.naming import layers_in, number_names
from keras_dist.models.session import Session, current_distribution
from keras_dist.training.cell import StateCell
from keras_dist.training.graph import ModuleGraph, trace_factory


def give_birth(model: Layer, tensors: Any, seed: int) -> Session:
    """Create the weights of a model, on the current distribution.

    Args:
        model: the root of the layers.
        tensors: symbolic inputs, in the structure in which the model takes them.
        seed: fixes the initial values.

    Raises:
        LayoutError: the layout rules cannot be applied.
        ModelError: a layer does not take its input.
    """
    inputs = jax.tree.map(stand_in_for, tensors)
    known: dict[_paths.Parts, Any] = {}
    built: dict[str, Any] = {}

    def factory(rngs: nnx.Rngs) -> Any:
        del rngs  # keys are drawn in the order in which weights are created: the same for all forms of a model
        copy, values = fresh_copy(model)
        known.update(values)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
        with random.key_stream(seed), call_context.entered(False, anew=True):
            copy(zeros)
        built["order"] = [_paths.join(parts) for parts, variable in walk(copy) if not _is_rng(variable)]
        built["names"] = dict(_keras_names(copy))
        return copy

    graph, init = trace_factory(factory, seed, None)
    if any(size is None for tensor in jax.tree.leaves(tensors) for size in tensor.shape[1:]):
        inputs = jax.tree.map(other_stand_in_for, tensors)
        other, _ = trace_factory(factory, seed, None)
        inputs = jax.tree.map(stand_in_for, tensors)
        _check_known_sizes(graph, other, tensors)
    frozen = frozen_paths(model)
    graph = dataclasses.replace(graph, specs=tuple(_with_alias(spec, built["names"]) for spec in graph.specs))
    aliases = (f"{model.name}/{path}".rstrip("/") for path in graph.module_paths)
    graph = dataclasses.replace(graph, module_paths=(*graph.module_paths, *aliases))
    graph = dataclasses.replace(graph, trained=tuple(trained_flags(graph, frozen)))
    distribution = current_distribution()
    plan = distribution.plan_variables(graph.specs, graph.treedef)
    cell = StateCell(graph, plan, plan.init(init))
    if known:
        indices = {parts: index for index, parts in enumerate(graph.parts)}
        cell.write_all({indices[parts]: value for parts, value in known.items()})
    session = Session(cell, _call, distribution, seed, built["order"], _compute_loss)
    session.frozen = frozen
    _link(model, session)
    settle(model, graph.described(), session)
    return session


def _check_known_sizes(graph: ModuleGraph, other: ModuleGraph, tensors: Any) -> None:
    """Check that no weight's shape depends on a dim of unknown size.

    Raises:
        ModelError: one does.
    """
    for spec, again in zip(graph.specs, other.specs, strict=True):
        if spec.shape != again.shape:
            shape = tuple(m if m == n else None for m, n in zip(spec.shape, again.shape, strict=True))
            raise ModelError(
                f"the shape of weight {spec.path!r} follows from a dim of unknown size",
                given=f"shape {shape} for inputs {[tensor.shape for tensor in jax.tree.leaves(tensors)]}",
                expected="a size for each dim that weights depend on",
                fix="give the dim a size in Input(shape), or pool over it first",
            )


def frozen_paths(model: Any) -> frozenset[str]:
    """The paths of the layers that are not to be trained."""
    return frozenset(path for path, layer in layers_below(model) if not layer._trainable)


def trained_flags(graph: ModuleGraph, frozen: Collection[str]) -> list[bool]:
    """For each variable whether it is a parameter and no layer around it is frozen."""
    return [
        spec.role == "parameter"
        and jnp.issubdtype(spec.dtype, jnp.inexact)
        and not any(is_below(name, path) for name in (spec.path, *spec.aliases) for path in frozen)
        for spec in graph.specs
    ]


def set_trainable(module: Any, model: Any) -> None:
    """Set `trainable` of the layers in `module` to what those of `model` have."""
    wanted = {path: layer._trainable for path, layer in layers_below(model)}
    for path, layer in layers_below(module):
        if path in wanted:
            layer._trainable = wanted[path]


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


def layers_below(root: Any) -> list[tuple[str, Any]]:
    """All layers of a model with their paths, itself included, each once and before its sublayers."""
    found: dict[int, tuple[str, Any]] = {}

    def visit(node: Any, path: str) -> None:
        if id(node) in found:
            return
        found[id(node)] = (path, node)
        home = getattr(node, "_home", None)
        made = [] if home is None else home.made_by_building(node)
        for name, child in [*children_of(node), *made]:
            if isinstance(child, nnx.Module):
                visit(child, path if name == _paths.MEMBERS else f"{path}/{name}".lstrip("/"))

    visit(root, "")
    return [(path, node) for path, node in found.values() if isinstance(node, Layer)]


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
    return module.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def _is_rng(variable: Any) -> bool:
    return isinstance(variable, nnx.RngState)


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is `prefix`, or begins with its parts."""
    return not prefix or path == prefix or path.startswith(f"{prefix}/")
