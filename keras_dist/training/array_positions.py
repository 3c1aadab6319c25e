"""`ArrayPosition`: the position of an array in a module: a variable, an attribute, or a leaf in one of them."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.lending import Lendable
from keras_dist._support.types import PyTree
from keras_dist._unstable import flax_internals
from keras_dist._unstable.flax_internals import is_data_attribute, is_variable


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayPosition:
    """The position of an array in a module: a variable or attribute, and the index of a leaf in it."""

    holder: Any
    attribute: str | None = None
    index: int | None = None

    @property
    def variable(self) -> Any:
        """The variable if it holds a single array; else None."""
        return self.holder if self.attribute is None and self.index is None else None

    @property
    def is_foreign(self) -> bool:
        """Whether the holder is not a `Lendable`."""
        return self.lendable is None

    @functools.cached_property
    def lendable(self) -> Lendable | None:
        """The variable if it is a `Lendable`; else None."""
        return self.holder if isinstance(self.holder, Lendable) else None

    def array(self) -> Any:
        """Return the array itself, not a copy."""
        tree = self._tree()
        return tree if self.index is None else jax.tree.leaves(tree, is_leaf=is_variable)[self.index]

    def keep(self, array: Any) -> None:
        """Set the array, which nobody else holds."""
        if self.index is not None:
            leaves, structure = jax.tree.flatten(self._tree(), is_leaf=is_variable)
            array = structure.unflatten([*leaves[: self.index], array, *leaves[self.index + 1 :]])
        if self.attribute is not None:
            vars(self.holder)[self.attribute] = array
        elif self.lendable is not None:
            self.lendable.keep(array)
        else:
            flax_internals.raw_value.__set__(self.holder, array)

    def _tree(self) -> PyTree:
        if self.attribute is not None:
            return vars(self.holder)[self.attribute]
        return flax_internals.raw_value.__get__(self.holder) if self.lendable is None else self.lendable.peek()


def positions_of(module: nnx.Module, parts: Sequence[tree_paths.Parts]) -> list[ArrayPosition]:
    """Return the positions of the arrays with these key paths, as `leaf_parts` returns them for a module."""
    counted: collections.Counter[tuple[int, str | None]] = collections.Counter()
    found: list[ArrayPosition] = []
    for names in parts:
        holder, owner, attribute = _holder(module, names)
        around = (holder, None) if isinstance(holder, nnx.Variable) else (owner, attribute)
        if _is_alone(*around):
            found.append(ArrayPosition(*around))
        else:
            found.append(ArrayPosition(*around, counted[id(around[0]), around[1]]))
            counted[id(around[0]), around[1]] += 1
        if around[1] is None and vars(owner)[attribute] is not holder:
            counted[id(owner), attribute] += 1  # a variable in a pytree is one of its leaves
    return found


def _holder(module: Any, names: tree_paths.Parts) -> tuple[Any, Any, str]:
    """Return the variable or array at a key path, and the last module on the path with its attribute."""
    node, owner, attribute = module, module, ""
    for name in names:
        if isinstance(node, nnx.Variable):
            break
        if isinstance(node, nnx.Pytree):
            members = vars(node).get(tree_paths.MEMBERS)
            if members is not None and str(name) in vars(members) and not is_data_attribute(node, str(name)):
                node = members
            owner, attribute = node, str(name)
            node = vars(node)[attribute]
        else:
            node = _inside(node, name)
    return node, owner, attribute


def _inside(tree: Any, name: str | int) -> PyTree:
    """Return the child of a pytree with this name or index."""
    if isinstance(tree, Mapping):
        items: Iterable[tuple[Any, PyTree]] = tree.items()
        return next(value for key, value in items if str(key) == str(name))
    if isinstance(tree, list | tuple) and not hasattr(tree, str(name)):
        items = enumerate(tree)
        return next(value for index, value in items if index == name)
    return getattr(tree, str(name))


def _is_alone(holder: Any, attribute: str | None) -> bool:
    """Whether the value is a single array, not a pytree."""
    tree = vars(holder)[attribute] if attribute is not None else flax_internals.raw_value.__get__(holder)
    return jax.tree_util.treedef_is_leaf(jax.tree.structure(tree))
