"""Slots to parameters, by structure: which parameter each leaf of an optimizer state belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from keras_dist.distribution.layout import Axis, TensorLayout


def map_followers(treedef: Any, parameters: Sequence[Any], tree: Any, assign: Callable[[Any, Any], Any]) -> Any:
    """`tree` with each leaf replaced by `assign(parameter or None, leaf)`.

    A leaf belongs to a parameter when it lies in the topmost subtree that has the parameters' tree as a prefix. Names
    play no part, so a module called `mu` cannot be mistaken for a slot.

    Args:
        treedef: structure of the parameters.
        parameters: one object for each leaf of `treedef`.
        tree: any pytree: an optimizer state, gradients, an average of the parameters.
        assign: called once for each leaf of `tree`.
    """

    def visit(node: Any) -> Any:
        try:
            subtrees = treedef.flatten_up_to(node)
        except (ValueError, TypeError, KeyError):
            children, structure = jax.tree.flatten(node, is_leaf=lambda child: child is not node)
            if len(children) == 1 and children[0] is node:
                return assign(None, node)
            return structure.unflatten([visit(child) for child in children])
        return treedef.unflatten(
            [
                jax.tree.map(lambda leaf, parameter=parameter: assign(parameter, leaf), subtree)
                for parameter, subtree in zip(parameters, subtrees, strict=True)
            ]
        )

    if treedef.num_leaves == 0:
        return jax.tree.map(lambda leaf: assign(None, leaf), tree)
    return visit(tree)


def follower_axes(
    shape: tuple[int, ...], parameter_shape: tuple[int, ...], layout: TensorLayout, name: str = ""
) -> tuple[Axis, ...] | None:
    """The axes of an array of `shape` that follows a parameter, or None when it has none of its dims.

    - the parameter's own shape: the parameter's axes;
    - some dims reduced to 1 (sm3): the axes of the dims that kept their size;
    - one dim missing (adafactor's `v_row` and `v_col`): the axes of the surviving dims;
    - dims in front (lbfgs's history): those unsharded, then the parameter's axes.

    Args:
        shape: dims of the follower.
        parameter_shape: dims of the parameter.
        layout: layout of the parameter.
        name: path of the follower; tells `v_row` from `v_col` where both dims have the same size.
    """
    axes = layout.axes
    rank, parameter_rank = len(shape), len(parameter_shape)
    if shape == parameter_shape:
        return axes
    if rank == parameter_rank:
        kept = [size == whole for size, whole in zip(shape, parameter_shape, strict=True)]
        if all(same or size == 1 for same, size in zip(kept, shape, strict=True)) and any(kept):
            return tuple(axis if same else None for axis, same in zip(axes, kept, strict=True))
    if rank == parameter_rank - 1 and rank > 0:
        removable = [d for d in range(parameter_rank) if parameter_shape[:d] + parameter_shape[d + 1 :] == shape]
        survivors = [axes[:d] + axes[d + 1 :] for d in removable]
        if len(set(survivors)) > 1:
            # equal sizes: optax reduces rows over the last such dim and columns over the one before
            survivors = [survivors[-2]] if "col" in name else [survivors[-1]] if "row" in name else []
        if survivors:
            return survivors[0]
    if rank > parameter_rank > 0 and shape[rank - parameter_rank :] == parameter_shape:
        return (None,) * (rank - parameter_rank) + axes
    return None
