"""The variables of a module, with their paths, in Keras's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from flax import nnx, traverse_util

from keras_dist._support import tree_paths
from keras_dist._unstable.flax_internals import variable_role
from keras_dist.variables.variable import Owners, Variable, is_trained_by


def keras_name(variable: nnx.Variable) -> str | None:
    """Return the name that a variable got from `add_weight`."""
    return variable.get_metadata().get("keras_name")


def walk(module: Any) -> Iterator[tuple[tree_paths.Parts, nnx.Variable]]:
    """Yield each variable of a module once, with its path, in Keras's order.

    The layer's own weights come first: trainable ones, then others, by creation. The weights of sublayers follow.
    """
    for parts, variable, _ in walk_owned(module):
        yield parts, variable


def walk_owned(module: Any) -> Iterator[tuple[tree_paths.Parts, nnx.Variable, Owners]]:
    """Yield what `walk` yields, and the layers that contain each variable, innermost first."""
    yield from _walk(module, (), (), set())


def _walk(
    node: Any, parts: tree_paths.Parts, owners: Owners, seen: set[int]
) -> Iterator[tuple[tree_paths.Parts, nnx.Variable, Owners]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if hasattr(node, "_trainable"):
        owners = (node, *owners)
    for inner, variable, inside in node._first_weights() if hasattr(type(node), "_first_weights") else ():
        seen.add(id(variable))
        yield tree_paths.visible((*parts, *inner)), variable, (inside, *owners)
    for inner, variable in sorted(direct_variables(node), key=lambda item: _rank(item[1])):
        if id(variable) not in seen:
            seen.add(id(variable))
            yield tree_paths.visible((*parts, *inner)), variable, owners
    for name, value in children_of(node):
        if not isinstance(value, nnx.Variable):
            yield from _walk(value, (*parts, name), owners, seen)


def direct_variables(node: Any) -> Iterator[tuple[tree_paths.Parts, nnx.Variable]]:
    """Yield the variables that a module holds directly, also in lists and dicts, in the order of assignment."""
    for name, value in children_of(node):
        if isinstance(value, nnx.Variable):
            yield (name,), value
        elif isinstance(value, nnx.List | nnx.Dict):
            yield from (((name, *inner), variable) for inner, variable in direct_variables(value))
    if not hasattr(node, "_trainable"):  # flax.nnx.bridge keeps the variables of Linen modules in plain dicts
        for name, value in vars(node).items():
            if isinstance(value, dict):
                flat = traverse_util.flatten_dict(value)
                yield from (((name, *inner), one) for inner, one in flat.items() if isinstance(one, nnx.Variable))


def _rank(variable: nnx.Variable) -> tuple[bool, int]:
    metadata = variable.get_metadata()
    return not (variable_role(variable) == "parameter" or metadata.get("is_frozen")), metadata.get("number") or 0


def children_of(node: Any) -> list[tuple[str | int, nnx.Variable | nnx.Module]]:
    """Return the variables and modules of a module itself, in the order of assignment."""
    named = list(enumerate(node)) if isinstance(node, nnx.List) else list(vars(node).items())
    return [(name, value) for name, value in named if isinstance(value, nnx.Variable | nnx.Module)]


def has_deferred(module: Any) -> bool:
    """Return whether a variable of a module has no array yet."""
    return any(isinstance(variable, Variable) and variable.is_deferred for _, variable in walk(module))


def penalties(module: Any) -> list[jax.Array]:
    """Return the regularization losses of the trainable weights."""
    if not getattr(module, "_trainable", True):
        return []
    found = []
    for _, variable, owners in walk_owned(module):
        regularizer = variable.get_metadata().get("regularizer")
        if regularizer is not None and isinstance(variable, nnx.Param) and is_trained_by(owners):
            found.append(regularizer(variable[...]))
    return found


def update_kinds(layer: Any) -> None:
    """Make weights of a layer `nnx.Param`s if all layers that contain them are trainable."""
    for _, variable, owners in walk_owned(layer):
        if isinstance(variable, Variable):
            variable.follow(max(owners, variable._owners, key=len))
