"""Names of the layers in a module, and the paths that Keras derives from them.

Layers are numbered within a model: Keras numbers them within the process, and the second model of a run would have
other paths, which rules would miss. Layers under names of the user are in an `nnx.Dict` that paths leave out, since a
layer may be called `train`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flax import nnx

from keras_dist._support import tree_paths
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import ModelError
from keras_dist.layers.base.layer_record import is_layer
from keras_dist.layers.base.weights import children_of, keras_name


def layers_in(module: nnx.Module) -> list[Any]:
    """Return the layers among the attributes of a module, also in lists and dicts, each once."""
    found: list[Any] = []
    for _, child in children_of(module):
        if is_layer(child):
            found.append(child)
        elif isinstance(child, nnx.List | nnx.Dict):
            found += layers_in(child)
    return list({id(layer): layer for layer in found}.values())


def number_names(layers: Sequence[Any]) -> dict[str, Any]:
    """Return layers by name; layers without a given name are numbered: `dense`, `dense_1`."""
    given = {layer.name for layer in layers if layer._base_name is None}
    members: dict[str, Any] = {}
    candidates = {}
    for layer in layers:
        is_given = layer._base_name is None
        base = layer._base_name or layer.name
        names = candidates.setdefault((base, is_given), numbered(base))
        members[next(name for name in names if name not in members and (is_given or name not in given))] = layer
    return members


def numbered(name: str) -> Iterator[str]:
    """Yield `name`, `name_1`, `name_2`, ..."""
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(1))


def name_members(layers: Sequence[Any]) -> dict[str, Any]:
    """Name the layers of a model distinctly by `number_names`; layers of other models keep their attribute name."""
    given: dict[str, Any] = {}
    for layer in layers:
        if layer._base_name is None and given.setdefault(layer.name, layer) is not layer:
            summary = f"two layers are called {layer.name!r}"
            fix = "name one of them otherwise, or leave its name out"
            raise ModelError(summary, given=f"{given[layer.name]!r} and {layer!r}", fix=fix)
    members = number_names(layers)
    for name, layer in members.items():
        if _may_be_renamed(layer):
            layer._name = name
    return members


def named_layers(module: nnx.Module) -> list[Any]:
    """Number repeated default names of layers, and return the layers as `layers_in` does; given names stay."""
    layers = layers_in(module)
    taken = {layer.name for layer in layers if layer._base_name is None}
    candidates: dict[str, Iterator[str]] = {}
    for layer in layers:
        if layer._base_name is not None and layer.name in taken and _may_be_renamed(layer):
            names = candidates.setdefault(layer._base_name, numbered(layer._base_name))
            layer._name = next(name for name in names if name not in taken)
        taken.add(layer.name)
    return layers


def _may_be_renamed(layer: Any) -> bool:
    """Whether no other model contains the layer."""
    membership = layer._record.membership
    return membership is None or not membership.prefix


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    return next(candidate for candidate in numbered(name) if candidate not in taken)


def layers_below(root: nnx.Module) -> list[tuple[str, Any]]:
    """Return all layers of a model, itself included, with their paths; each once and before its sublayers."""
    found: dict[int, tuple[str, Any]] = {}

    def visit(node: Any, path: str) -> None:
        if id(node) in found:
            return
        found[id(node)] = (path, node)
        for name, child in children_of(node):
            if isinstance(child, nnx.Module):
                visit(child, path if name == tree_paths.MEMBERS else f"{path}/{name}".lstrip("/"))

    visit(root, "")
    return [(path, node) for path, node in found.values() if is_layer(node)]


class KerasPaths(NamedTuple):
    """Keras's paths of weights, by path here, and of layers in a call of the model, by id."""

    weights: dict[str, str]
    layers: dict[int, str]


def keras_paths(root: Any, early: Collection[str] = (), built: Mapping[str, str | None] | None = None) -> KerasPaths:
    """Return Keras's paths of the weights and layers in a model; modules that are not layers have none.

    Keras names a weight by the layers that run while it is created. A functional model, and a `Sequential` that begins
    with an Input, build their layers when they are made, outside of any model.

    Args:
        root: the model.
        early: paths of weights that existed before the first call of the model: only their layer is in the name.
        built: for paths of layers that were built before, Keras's path then; None if unknown.
    """
    found = KerasPaths({}, {})
    repeated = _repeated_names(root)
    seen: set[int] = set()
    built = built or {}

    def visit(node: Any, path: str, around: _Around) -> None:
        if id(node) in seen or not (is_layer(node) or isinstance(node, nnx.List | nnx.Dict)):
            return
        seen.add(id(node))
        own = ""
        if is_layer(node):
            own = around.names.get(id(node), node.name)
            is_known = vars(node).get("_base_name") not in repeated
            scope = _joined(around.scope, own) if is_known and around.scope is not None else None
            is_traced, existed = around.is_traced, around.existed
            if vars(node).get("_graph") is not None:
                is_named = "_chain" in vars(node)
                scope = "" if not is_named else own if is_known else None
                is_traced, existed = True, existed or path in built
            elif path in built and not existed:
                scope, existed = built[path], True
            elif node._record.nodes and not (is_traced or existed):
                scope, is_traced = own if is_known else None, True
            around = _Around(scope, _joined(around.called, own), _names_in(node), is_traced, existed)
            found.layers[id(node)] = around.called
        for key, child in children_of(node):
            inner = path if key == tree_paths.MEMBERS else _joined(path, str(key))
            if not isinstance(child, nnx.Variable):
                visit(child, inner, around)
            elif around.scope is not None and (weight := keras_name(child)) is not None:
                is_lone = inner in early and not around.existed
                found.weights[inner] = _joined(own if is_lone else around.scope, weight)

    visit(root, "", _Around("", "", {}))
    return found


def with_keras_paths(specs: Iterable[VariableSpec], paths: Mapping[str, str]) -> tuple[VariableSpec, ...]:
    """Return the variables with Keras's paths, as far as each path names one variable."""
    specs = [_with_keras_path(spec, paths) for spec in specs]
    names = Counter(name for spec in specs for name in spec.names)
    return tuple(spec if names[spec.keras_path or ""] <= 1 else _with_keras_path(spec, {}) for spec in specs)


def _with_keras_path(spec: VariableSpec, paths: Mapping[str, str]) -> VariableSpec:
    known = next((paths[name] for name in (spec.path, *spec.aliases) if name in paths), None)
    return dataclasses.replace(
        spec,
        keras_path=None if known == spec.path else known,
        factor_of=None if spec.factor_of is None else (_with_keras_path(spec.factor_of[0], paths), spec.factor_of[1]),
        beside=tuple(_with_keras_path(parameter, paths) for parameter in spec.beside),
    )


def _repeated_names(root: Any) -> set[str]:
    """Return default names of layers in several layers of a model, which Keras numbers globally."""
    holders: dict[str, set[int]] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        holder = waiting.pop()
        if id(holder) not in seen:
            seen.add(id(holder))
            inner = layers_in(holder)
            for layer in inner:
                if layer._base_name is not None:
                    holders.setdefault(layer._base_name, set()).add(id(holder))
            waiting += inner
    return {name for name, several in holders.items() if len(several) > 1}


class _Around(NamedTuple):
    """Names and state of the layers that contain a node."""

    scope: str | None  # Keras's prefix of weights, if known
    called: str  # path in a call of the model
    names: Mapping[int, str]  # names of layers by id
    is_traced: bool = False  # whether a call on symbolic tensors has built one of them
    existed: bool = False  # whether one of them was built before the model


def _names_in(layer: Any) -> dict[int, str]:
    """Return the names of the layers in a layer, by id: as in its paths, else numbered."""
    members = vars(layer).get(tree_paths.MEMBERS)
    known = {id(child): str(key) for key, child in children_of(members)} if isinstance(members, nnx.Dict) else {}
    return {id(inner): name for name, inner in number_names(layers_in(layer)).items()} | known


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
