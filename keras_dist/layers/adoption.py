"""Transfer of the variables, submodules and attributes that building made in a copy of a layer, to the layer.

NNX forbids changing objects in a trace that were made outside. So copies are built in traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist._unstable.flax_internals import PRIVATE_PREFIXES, is_data_attribute
from keras_dist.variables.variable import Variable

MISSING = object()
"""Stands for an attribute that a module lacks."""


def adopt(module: nnx.Module, built: nnx.Module) -> list[tuple[nnx.Pytree, dict[str, Any]]]:
    """Move the variables, submodules and attributes that building created in the copy `built` to `module`.

    Objects that the module has already are kept, and so are attributes that only a call changed. The copy must not be
    used afterwards. Return the modules that both have, with their attributes before.
    """
    pairs = list(pairs_of(module, built))
    own = {id(theirs): ours for ours, theirs in pairs}
    before_all = [(ours, dict(vars(ours))) for ours, _ in pairs if isinstance(ours, nnx.Pytree)]
    seen: set[int] = set()
    for ours, theirs in pairs:
        for name, value in _attributes(theirs):
            before, is_data = vars(ours).get(name, MISSING), is_data_attribute(theirs, name)
            if isinstance(value, nnx.Variable | nnx.Pytree):
                value = own.get(id(value), value)
                _replace_copies(value, own, seen)
            elif before is not MISSING and (is_data or not isinstance(ours, nnx.List | nnx.Dict)):
                continue
            if value is not before:
                nnx.Pytree.__setattr__(ours, name, nnx.data(value) if is_data else value)
    return before_all


def take_static(layer: Any, built_with: Mapping[str, Any]) -> None:
    """Set the static attributes that a layer has after building."""
    for name, value in built_with.items():
        if not name.startswith(PRIVATE_PREFIXES) and vars(layer).get(name, MISSING) is not value:
            nnx.Pytree.__setattr__(layer, name, value)


def nodes_in(module: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a module, and the modules and variables in it that are not in `seen`, each once."""
    seen, waiting = set() if seen is None else seen, [module]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            if not isinstance(node, nnx.Variable):
                waiting += [value for value in vars(node).values() if isinstance(value, nnx.Variable | nnx.Pytree)]


def pairs_of(module: Any, built: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each module and variable with its copy; skip a variable that building replaced."""
    seen: set[int] = set()
    waiting = [(module, built)]
    while waiting:
        ours, theirs = waiting.pop()
        is_same = type(ours) is type(theirs) or (isinstance(ours, Variable) and isinstance(theirs, Variable))
        if id(theirs) in seen or not is_same:
            continue
        seen.add(id(theirs))
        yield ours, theirs
        if isinstance(ours, nnx.Variable):
            continue
        for name, value in _attributes(theirs):
            if isinstance(value, nnx.Variable | nnx.Pytree) and name in vars(ours):
                waiting.append((vars(ours)[name], value))


def _attributes(node: Any) -> list[tuple[str, Any]]:
    """Return the attributes of a module without the internal attributes of Flax; none for a variable."""
    if isinstance(node, nnx.Variable):
        return []
    return [(name, value) for name, value in vars(node).items() if not name.startswith(PRIVATE_PREFIXES)]


def _replace_copies(node: PyTree, own: dict[int, Any], seen: set[int]) -> None:
    """Replace copies by the user's objects inside a module that building created."""
    if isinstance(node, nnx.Variable) or id(node) in seen:
        return
    seen.add(id(node))
    for name, value in _attributes(node):
        if isinstance(value, nnx.Variable | nnx.Pytree):
            if own.get(id(value), value) is not value:
                nnx.Pytree.__setattr__(node, name, own[id(value)])
            _replace_copies(own.get(id(value), value), own, seen)
