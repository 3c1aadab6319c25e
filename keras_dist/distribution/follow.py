"""Slots to parameters, by structure: which parameter each leaf of an optimizer state belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from keras_dist.distribution.layout import Axis


class Parameter(Protocol):
    """What a parameter's followers must know of it."""

    @property
    def path(self) -> str:
        """Its name."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims."""
        ...


P = TypeVar("P", bound=Parameter)
Owned = list[tuple[P | None, Any]]


def owners(treedef: Any, parameters: Sequence[P], tree: Any) -> Owned[P]:
    """The parameter each leaf of `tree` belongs to, or None, beside the leaf; in flattening order.

    Leaves belong to parameters where a subtree is built as the parameters' tree is, branches that a mask emptied
    aside. Names play no part, so a module called `mu` cannot be mistaken for a slot. Where a subtree and one inside it
    are both built so (parameters `(w, b)`, and optax's tuple of two states), the one whose shapes agree better counts.

    Args:
        treedef: structure of the parameters.
        parameters: one object for each leaf of `treedef`.
        tree: any pytree: an optimizer state, gradients, an average of the parameters.
    """
    if treedef.num_leaves == 0:
        return [(None, leaf) for leaf in jax.tree.leaves(tree)]
    whole = treedef.unflatten(parameters)

    def explain(node: Any) -> Owned[P]:
        children = _children(node)
        inside: Owned[P] = (
            [(None, node)] if children is None else [pair for child in children for pair in explain(child)]
        )
        here = _pair(whole, node)
        if here is None:
            return inside
        is_owned_inside = any(parameter is not None for parameter, _ in inside)
        return inside if is_owned_inside and _agreement(inside) >= _agreement(here) else here

    return explain(tree)


def _pair(parameters: Any, node: Any) -> Owned[Any] | None:
    """The leaves of `node`, each beside its parameter; None where `node` is built in another way."""
    branches = _children(parameters)
    if branches is None:
        return [(parameters, leaf) for leaf in jax.tree.leaves(node)]
    if not jax.tree.leaves(node):
        return []
    children = _children(node)
    if children is None or _shell(node) != _shell(parameters):
        return None
    pairs = [_pair(branch, child) for branch, child in zip(branches, children, strict=True)]
    return None if any(part is None for part in pairs) else [pair for part in pairs for pair in part or ()]


def _children(node: Any) -> list[Any] | None:
    """The branches of a pytree; None for a leaf."""
    children = jax.tree.leaves(node, is_leaf=lambda child: child is not node)
    return None if len(children) == 1 and children[0] is node else children


def _shell(node: Any) -> Any:
    """The structure of the topmost level of a pytree."""
    return jax.tree.structure(node, is_leaf=lambda child: child is not node)


def _agreement(owned: Owned[Any]) -> tuple[int, int]:
    """How many leaves have their parameter's shape, and how many have one that follows from it."""
    shapes = [(np.shape(leaf), parameter.shape) for parameter, leaf in owned if parameter is not None]
    related = [follower_axes(shape, whole, (None,) * len(whole)) for shape, whole in shapes]
    return sum(shape == whole for shape, whole in shapes), sum(axes is not None for axes in related)


def follower_axes(
    shape: tuple[int, ...], parameter_shape: tuple[int, ...], axes: tuple[Axis, ...], slot: str = ""
) -> tuple[Axis, ...] | None:
    """The axes of an array of `shape` that follows a parameter, or None when it has none of its dims.

    - the parameter's own shape: the parameter's axes;
    - some dims reduced to 1: the axes of the dims that kept their size;
    - one dim missing (adafactor's `v_row` and `v_col`): the axes of the surviving dims;
    - dims in front (lbfgs's history): those unsharded, then the parameter's axes.

    Args:
        shape: dims of the follower.
        parameter_shape: dims of the parameter.
        axes: axes of the parameter.
        slot: path of the follower up to the parameter's own path; tells `v_row` from `v_col` where dims have the same
            size.
    """
    rank, parameter_rank = len(shape), len(parameter_shape)
    if shape == parameter_shape:
        return axes
    if rank == parameter_rank:
        kept = [size == whole for size, whole in zip(shape, parameter_shape, strict=True)]
        if all(same or size == 1 for same, size in zip(kept, shape, strict=True)) and any(kept):
            return tuple(axis if same else None for axis, same in zip(axes, kept, strict=True))
    if rank == parameter_rank - 1 and rank > 0:
        survivors = {
            dim: axes[:dim] + axes[dim + 1 :]
            for dim in range(parameter_rank)
            if parameter_shape[:dim] + parameter_shape[dim + 1 :] == shape
        }
        if len(set(survivors.values())) > 1:
            survivors = {dim: survivors[dim] for dim in _factored_away(parameter_shape, slot) if dim in survivors}
        if survivors:
            return next(iter(survivors.values()))
    if rank > parameter_rank > 0 and shape[rank - parameter_rank :] == parameter_shape:
        return (None,) * (rank - parameter_rank) + axes
    return None


def _factored_away(parameter_shape: tuple[int, ...], slot: str) -> list[int]:
    """The dim that optax averages away in `v_row` (the largest) or `v_col` (the second largest)."""
    second, largest = np.argsort(parameter_shape)[-2:]
    return [int(dim) for name, dim in (("v_row", largest), ("v_col", second)) if name in slot.split("/")]
