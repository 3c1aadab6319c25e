"""The weights of a layer: in which order they are listed, which are trained, and handles on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from keras_dist import _paths
from keras_dist._operators import Operators, as_pytree
from keras_dist.layers.variable import Variable, checked_value

Owners = tuple[Any, ...]
"""The layers around a weight, the innermost first."""


@as_pytree
class OwnWeight(Operators):
    """A handle on a weight that a layer owns itself, because it is in no model yet.

    Attributes:
        path: the names that lead to it from the layer, such as `kernel`.
        name: what `add_weight` called it.
        layout: None: it lives where JAX puts arrays.
    """

    layout = None

    def __init__(self, path: str, variable: nnx.Variable, owners: Owners) -> None:
        self._variable = variable
        self._owners = owners
        self.path = path
        self.name = keras_name(variable) or path.rpartition("/")[2]

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Its dims."""
        return self._variable.shape

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Its element type."""
        return self._variable.dtype

    @property
    def trainable(self) -> bool:
        """Whether gradients train it: what its layer says now."""
        return isinstance(self._variable, nnx.Param) and say_trainable(self._owners)

    def _read(self) -> jax.Array:
        return self._variable[...]

    def assign(self, value: Any) -> jax.Array:
        """Set its value; gives the new one.

        Raises:
            ModelError: the shape differs, or it is no array that the dtype can hold.
        """
        self._variable[...] = jnp.array(checked_value(value, self), self.dtype)
        return self.value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}, value={self.value}>"


def keras_name(variable: Any) -> str | None:
    """What `add_weight` called a variable; None for others."""
    return variable.get_metadata().get("keras_name")


def tell_paths(module: Any) -> None:
    """Let the weights of a module know the names that lead to them."""
    for parts, variable in walk(module):
        if isinstance(variable, Variable):
            variable.set_metadata("keras_path", _paths.join(parts))


def say_trainable(owners: Owners) -> bool:
    """Whether a weight is trained that these layers are around, as far as they have a say.

    The innermost whose `trainable` was set decides: setting it sets all layers inside, so that it was the last word.
    """
    for layer in owners:
        if not layer._trainable:
            return False
        if layer._trainable_was_set:
            break
    return True


def walk(module: Any) -> Iterator[tuple[_paths.Parts, nnx.Variable]]:
    """Every variable of a module once, in Keras's order, with the names that lead to it.

    First a layer's own weights, those that are trained before the others, in the order in which they were created; then
    the same for each sublayer, in the order of assignment.
    """
    for parts, variable, _ in walk_owned(module):
        yield parts, variable


def walk_owned(module: Any) -> Iterator[tuple[_paths.Parts, nnx.Variable, Owners]]:
    """As `walk`, with the layers around each variable, the innermost first."""
    yield from _walk(module, (), (), set())


def _walk(
    node: Any, parts: _paths.Parts, owners: Owners, seen: set[int]
) -> Iterator[tuple[_paths.Parts, nnx.Variable, Owners]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if hasattr(node, "_trainable"):
        owners = (node, *owners)
    for inner, variable in sorted(own_variables(node), key=lambda item: _rank(item[1])):
        if id(variable) not in seen:
            seen.add(id(variable))
            yield _paths.visible((*parts, *inner)), variable, owners
    for name, value in children_of(node):
        if not isinstance(value, nnx.Variable):
            yield from _walk(value, (*parts, name), owners, seen)


def own_variables(node: Any) -> Iterator[tuple[_paths.Parts, nnx.Variable]]:
    """The variables that a module holds, also in lists and dicts, in the order of assignment."""
    for name, value in children_of(node):
        if isinstance(value, nnx.Variable):
            yield (name,), value
        elif isinstance(value, nnx.List | nnx.Dict):
            yield from (((name, *inner), variable) for inner, variable in own_variables(value))
    if not hasattr(node, "_trainable"):  # flax.nnx.bridge holds what Linen's modules have in plain dicts
        for name, value in vars(node).items():
            if isinstance(value, dict):
                flat = traverse_util.flatten_dict(value)
                yield from (((name, *inner), one) for inner, one in flat.items() if isinstance(one, nnx.Variable))


def _rank(variable: nnx.Variable) -> tuple[bool, int]:
    return not isinstance(variable, nnx.Param), variable.get_metadata().get("number") or 0


def children_of(node: Any) -> list[tuple[str | int, Any]]:
    """The variables and modules that a module holds, in the order of assignment."""
    named = list(enumerate(node)) if isinstance(node, nnx.List) else list(vars(node).items())
    return [(name, value) for name, value in named if isinstance(value, nnx.Variable | nnx.Module)]


def penalties(module: Any) -> list[Any]:
    """What the regularizers of the trained weights give, a scalar each."""
    if not getattr(module, "_trainable", True):
        return []
    found = []
    for _, variable, owners in walk_owned(module):
        regularizer = variable.get_metadata().get("regularizer")
        if regularizer is not None and isinstance(variable, nnx.Param) and say_trainable(owners):
            found.append(regularizer(variable[...]))
    return found
