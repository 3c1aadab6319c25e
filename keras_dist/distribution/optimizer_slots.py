"""The parameter of each leaf of an optimizer state, found by the structure of the state.

Slots are matched by structure: the topmost subtree in which the path of each leaf begins with the path of a parameter;
where an inner one fits too, shapes decide. Matching suffixes is silently wrong for a module named `mu`; matching
containers is silently wrong for Linen's `params`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.types import PyTree
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.variables import leaf_parts

if TYPE_CHECKING:
    from keras_dist.distribution.plan import Row


class Claim(NamedTuple):
    """A leaf (an array, or its shape) and the parameter it belongs to, or None."""

    parameter: Row | None
    leaf: Any
    is_whole: bool = False  # found in a subtree that has a branch for every parameter


def owners(planned: Mapping[tree_paths.Parts, Row], tree: PyTree) -> list[Claim]:
    """Return the parameter that each leaf of `tree` belongs to, in flattening order.

    A subtree belongs to the parameters if the path of each leaf begins with the path of a parameter. Branches may be
    missing, and types of containers are ignored. The topmost such subtree is used, so a module called `mu` cannot be
    mistaken for a slot; a subtree inside it, if its shapes agree better (parameters `(w, b)` in optax's tuple of two
    states).
    """
    by_names = {tuple(map(str, parts)): parameter for parts, parameter in planned.items()}

    def explain(node: PyTree) -> list[Claim]:
        children = jax.tree.leaves(node, is_leaf=lambda child: child is not node)
        is_leaf = len(children) == 1 and children[0] is node
        inside = [Claim(None, node)] if is_leaf else [claim for child in children for claim in explain(child)]
        here = _claim(by_names, node)
        if here is None:
            return inside
        is_owned_inside = any(claim.parameter is not None for claim in inside)
        return inside if is_owned_inside and _agreement(inside) >= _agreement(here) else here

    return explain(tree)


def _claim(by_names: Mapping[tuple[str, ...], Row], node: PyTree) -> list[Claim] | None:
    """Return the leaves of `node`, each with its parameter; None if a leaf has no parameter."""
    ways: list[tuple[str, ...]] = []
    for parts in leaf_parts(node):
        names = tuple(map(str, parts))
        beginnings = [names[:length] for length in range(len(names) + 1) if names[:length] in by_names]
        if not beginnings:
            return None
        ways.append(beginnings[-1])
    is_whole = set(ways) == set(by_names)
    return [Claim(by_names[way], leaf, is_whole) for way, leaf in zip(ways, jax.tree.leaves(node), strict=True)]


def _agreement(claims: list[Claim]) -> tuple[int, int, int]:
    """Count leaves with their parameter's shape, with a related shape, and its shape in a whole subtree."""
    owned = [
        (np.shape(leaf), parameter.shape, is_whole) for parameter, leaf, is_whole in claims if parameter is not None
    ]
    equal = [is_whole for shape, whole, is_whole in owned if shape == whole]
    related = [follower_axes(shape, whole, (None,) * len(whole)) is not None for shape, whole, _ in owned]
    return len(equal), sum(related), sum(equal)


def follower_axes(
    shape: tuple[int, ...], parameter_shape: tuple[int, ...], axes: tuple[Axis, ...], slot: str = ""
) -> tuple[Axis, ...] | None:
    """Return the axes of an array that belongs to a parameter, or None if it has none of its dims.

    - the parameter's own shape: the parameter's axes;
    - some dims reduced to 1: the axes of the dims that kept their size;
    - the last dim reduced to a number of blocks (scales of `Adam8bit`): the parameter's axes;
    - one dim missing (adafactor's `v_row` and `v_col`, distinguished by the path `slot`): the axes of the other dims;
    - dims in front (lbfgs's history): unsharded, then the parameter's axes.
    """
    rank, parameter_rank = len(shape), len(parameter_shape)
    if shape == parameter_shape:
        return axes
    if rank == parameter_rank:
        kept = [size == whole for size, whole in zip(shape, parameter_shape, strict=True)]
        if all(same or size == 1 for same, size in zip(kept, shape, strict=True)) and any(kept):
            return tuple(axis if same else None for axis, same in zip(axes, kept, strict=True))
        if rank and all(kept[:-1]) and 1 < shape[-1] < parameter_shape[-1]:
            return axes
    if rank == parameter_rank - 1 and rank > 0:
        survivors = {
            dim: axes[:dim] + axes[dim + 1 :]
            for dim in range(parameter_rank)
            if parameter_shape[:dim] + parameter_shape[dim + 1 :] == shape
        }
        if len(set(survivors.values())) > 1:
            # optax averages the largest dim in `v_row`, the second largest in `v_col`
            second, largest = map(int, np.argsort(parameter_shape)[-2:])
            averaged = [dim for name, dim in (("v_row", largest), ("v_col", second)) if name in slot.split("/")]
            survivors = {dim: survivors[dim] for dim in averaged if dim in survivors}
        if survivors:
            return next(iter(survivors.values()))
    if rank > parameter_rank > 0 and shape[rank - parameter_rank :] == parameter_shape:
        return (None,) * (rank - parameter_rank) + axes
    return None
