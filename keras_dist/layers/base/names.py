"""Names of the layers in a module, and the paths that Keras derives from them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flax import nnx

from keras_dist._support import tree_paths
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
