"""Names under which Keras stores the variables of a model: attribute names and numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flax import nnx

from keras_dist import layers
from keras_dist._support import tree_paths
from keras_dist.layers.attention.multi_head_attention import ProjectedAttention
from keras_dist.layers.base.weights import children_of, direct_variables
from keras_dist.layers.core.wrapper import Wrapper
from keras_dist.serialization.object_registry import snake_case

OPTIMIZER = "optimizer"


@dataclasses.dataclass
class Hooks:
    """Layers with `save_own_variables` or `save_assets` of their class."""

    live: Mapping[str, Any]  # layers whose hooks may be called, by path
    # layers with hooks, by the names of their groups in the file
    found: dict[str, Any] = dataclasses.field(default_factory=dict)
    covered: set[str] = dataclasses.field(default_factory=set)  # the paths of their weights
    # layers with separate files, by the names of their folders
    with_assets: dict[str, Any] = dataclasses.field(default_factory=dict)


def stored_variables(
    module: Any, order: Mapping[str, int], hooks: Hooks, stored: Iterable[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the name of each variable of a model in a file of Keras, and its path in the model.

    Some are stored twice: `SpectralNormalization` contains the kernel of its layer. Metrics are not stored, nor paths
    without a place in `order`. `hooks` collects the layers that define `save_own_variables` themselves. A variable that
    is missing in `stored`, the names in a file, under its first name is looked up under further names: attributes are
    renamed, and older versions skipped containers in containers.
    """
    seen: set[int] = set()
    parts_of_names = [name.split("/") for name in stored or ()]
    groups = {"/".join(parts[:depth]) for parts in parts_of_names for depth in range(len(parts))}

    def walk(node: Any, name: str, parts: tree_paths.Parts) -> Iterator[tuple[str, str]]:
        if id(node) in seen or (stored is not None and name not in groups):
            return
        seen.add(id(node))
        own, path = _own(node, parts, order), tree_paths.join(tree_paths.visible(parts))
        if path in hooks.live and (hasattr(node, "save_assets") or hasattr(node, "load_assets")):
            hooks.with_assets[name] = hooks.live[path]
        if isinstance(node, layers.Layer) and _has_own_format(node) and path in hooks.live:
            hooks.found[joined(name, "vars")] = hooks.live[path]
            hooks.covered.update(own)
        else:
            yield from ((joined(name, f"vars/{number}"), path) for number, path in enumerate(own))
        for attribute, child, inner in _attributes(node):
            walk_child = walk_container if isinstance(child, nnx.List | nnx.Dict | list) else walk
            yield from walk_child(child, joined(name, attribute), (*parts, *inner))

    def walk_container(container: Any, name: str, parts: tree_paths.Parts) -> Iterator[tuple[str, str]]:
        """Members go by their classes, which are numbered."""
        counts: dict[str, int] = {}
        members = container if isinstance(container, list) else [(one, (key,)) for key, one in children_of(container)]
        for child, inner in members:
            if isinstance(child, nnx.Variable):
                continue
            is_container = isinstance(child, nnx.List | nnx.Dict)
            kind = "container" if is_container else _class_name(child)
            counts[kind] = count = counts.get(kind, -1) + 1
            member = joined(name, f"{kind}_{count}" if count else kind)
            yield from (walk_container if is_container else walk)(child, member, (*parts, *inner))

    yield from walk(module, "", ())


def _has_own_format(layer: layers.Layer) -> bool:
    """Return whether the class of a layer stores its variables itself."""
    names = ("save_own_variables", "load_own_variables")
    return any(getattr(type(layer), name) is not getattr(layers.Layer, name) for name in names)


def _own(node: Any, parts: tree_paths.Parts, order: Mapping[str, int]) -> list[str]:
    """Return the paths of the variables that Keras keeps with an object itself."""
    paths = [tree_paths.join(tree_paths.visible((*parts, *inner))) for inner, _ in direct_variables(node)]
    found = sorted((path for path in paths if path in order), key=order.__getitem__)
    if isinstance(node, layers.SpectralNormalization):
        inner = tree_paths.visible((*parts, *_member(node, node.layer)[1]))
        kernels = [tree_paths.join((*inner, name)) for name in ("kernel", "embeddings")]
        found = [path for path in kernels if path in order] + found
    return found


def _attributes(node: Any) -> list[tuple[str, Any, tree_paths.Parts]]:
    """Return names in Keras, values and our names of the attributes that lead to other objects, in Keras's order."""
    found: dict[str, tuple[Any, tree_paths.Parts]]
    found = {str(name): (child, (name,)) for name, child in children_of(node) if not isinstance(child, nnx.Variable)}
    found |= _of_properties(node, {id(child): parts for child, parts in found.values()})
    members = found.pop(tree_paths.MEMBERS, None)
    in_keras = next((attributes for cls, attributes in _IN_KERAS.items() if isinstance(node, cls)), None)
    if in_keras is not None:
        found |= in_keras(node)
    elif members is None and hasattr(type(node), "layers"):
        found["layers"] = (_layers_of(node), ())
    first = [] if in_keras is not None or members is None else [("layers", *members)]
    ordered = sorted(found, key=lambda name: f"~{name}" if name[0] == "_" else name)
    return first + [(name, *found[name]) for name in ordered]


def _of_properties(node: Any, held: Mapping[int, tree_paths.Parts]) -> dict[str, tuple[Any, tree_paths.Parts]]:
    """Return the properties of user-defined classes that return attributes of the object."""
    found: dict[str, tuple[Any, tree_paths.Parts]] = {}
    for cls in type(node).__mro__:
        if cls.__module__.startswith(("keras_dist.", "flax.")):
            continue
        for name, value in vars(cls).items():
            if isinstance(value, property):
                try:
                    child = getattr(node, name)
                except Exception:  # it may need what is not there: Keras leaves it out, too
                    continue
                if id(child) in held:
                    found[name] = (child, held[id(child)])
    return found


def _layers_of(node: Any) -> list[tuple[Any, tree_paths.Parts]]:
    """Return the layers of a model that is not functional, in the order of assignment, as Keras lists them."""
    found: list[tuple[Any, tree_paths.Parts]] = []

    def add(holder: Any, parts: tree_paths.Parts) -> None:
        for name, child in children_of(holder):
            if isinstance(child, nnx.List | nnx.Dict):
                add(child, (*parts, name))
            elif isinstance(child, layers.Layer) and all(child is not known for known, _ in found):
                found.append((child, (*parts, name)))

    add(node, ())
    return found


def _class_name(node: Any) -> str:
    cls = type(node)
    is_graph = cls.__name__ == "Model" and cls.__module__.startswith("keras_dist.")
    return "functional" if is_graph else snake_case(cls.__name__)


def _member(node: Any, child: Any) -> tuple[Any, tree_paths.Parts]:
    """Return a child with the names that lead to it."""
    (key,) = [key for key, one in children_of(node._members) if one is child]
    return child, (tree_paths.MEMBERS, key)


def _of_attention(node: Any) -> dict[str, tuple[Any, tree_paths.Parts]]:
    prefix = "_" if isinstance(node, layers.GroupedQueryAttention) else ""
    names = {name: f"{prefix}{name}_dense" for name in ("query", "key", "value")}
    names |= {"attention_output": f"{prefix}output_dense", "gate": "_gate_dense", "dropout": "_dropout_layer"}
    return {names[str(key)]: (child, (tree_paths.MEMBERS, key)) for key, child in children_of(node._members)}


_IN_KERAS: dict[type, Callable[[Any], dict[str, tuple[Any, tree_paths.Parts]]]] = {
    layers.StackedRNNCells: lambda node: {"cells": ([_member(node, cell) for cell in node.cells], ())},
    layers.RNN: lambda node: {"cell": _member(node, node.cell)},
    layers.Bidirectional: lambda node: {
        "forward_layer": _member(node, node.forward_layer),
        "backward_layer": _member(node, node.backward_layer),
    },
    Wrapper: lambda node: {"layer": _member(node, node.layer)},
    ProjectedAttention: _of_attention,
}
"""The layers whose attributes have other names in Keras."""


def name_now(name: str) -> str:
    """Return the current Keras name for a name of an older version."""
    name = name.replace("_layer_checkpoint_dependencies", "layers")  # Keras 2.13
    return re.sub(r"(multi_head_attention\w*)/_(query|key|value|output)_dense/", r"\1/\2_dense/", name)


def joined(prefix: str, name: str) -> str:
    """Return a name in a group; the root has no prefix."""
    return f"{prefix}/{name}" if prefix else name
