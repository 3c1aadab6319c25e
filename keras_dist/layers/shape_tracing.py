"""Tracing of layers for symbolic tensors: sizes in place of unknown dims, and copies of layers to build in a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist import _jax, _paths
from keras_dist._types import PyTree, Shape
from keras_dist.distribution.variables import leaf_parts
from keras_dist.layers.record import Recorded

if TYPE_CHECKING:
    from keras_dist.layers.symbolic import KerasTensor

SIZES = (3360, 6720)
"""Two sizes for dims of unknown size: large enough for strides and pools, and divisible by what reshapes divide by.
Nothing of these sizes is ever allocated. What differs between the two depends on a dim of unknown size."""


def trace(
    run: Callable[[list[jax.ShapeDtypeStruct]], PyTree], tensors: Sequence[KerasTensor], size: int = SIZES[0]
) -> PyTree:
    """Return `run(shapes)` for shapes like those of the tensors.

    Where it fails, batches of unknown size are taken to be as large as those of the other tensors; then all unknown
    sizes to be those with which they broadcast. A note of the error says what stands for unknown sizes.

    Args:
        run: a function of a list of shapes.
        tensors: with `shape` and `dtype`; dims may be None.
        size: in place of None.
    """
    shapes = [tensor.shape for tensor in tensors]
    try:
        return run(_filled(shapes, tensors, size))
    except Exception as error:
        for others in (_with_batch_of_others(shapes), _as_broadcast(shapes)):
            if others != shapes:
                with contextlib.suppress(Exception):
                    return run(_filled(others, tensors, size))
        if any(None in shape for shape in shapes):
            error.add_note(f"{size} stands for a dim of unknown size (None), such as the batch")
        raise


def _filled(shapes: Sequence[Shape], tensors: Sequence[KerasTensor], size: int) -> list[jax.ShapeDtypeStruct]:
    """Return these shapes with `size` for the dims of unknown size, and the element types of the tensors."""
    return [
        jax.ShapeDtypeStruct(
            tuple(size if dim is None else dim for dim in shape), jax.dtypes.canonicalize_dtype(tensor.dtype)
        )
        for shape, tensor in zip(shapes, tensors, strict=True)
    ]


def _with_batch_of_others(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes with the one known size of batches, where others are unknown."""
    sizes = {shape[0] for shape in shapes if shape}
    known = sizes - {None}
    if len(known) != 1 or len(sizes) != 2:
        return [*shapes]
    return [(*known, *shape[1:]) if shape and shape[0] is None else shape for shape in shapes]


def _as_broadcast(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes with the one known size of dims, counted from the last, where others are unknown."""

    def size(place: int) -> int | None:
        known = {shape[place] for shape in shapes if len(shape) >= -place} - {None, 1}
        return known.pop() if len(known) == 1 else None

    return [
        tuple(size(place) if shape[place] is None else shape[place] for place in range(-len(shape), 0))
        for shape in shapes
    ]


def fresh_copy(module: nnx.Module) -> tuple[nnx.Module, set[_paths.Parts]]:
    """Return a copy of a module, to be changed in the current trace, and what leads to the arrays that exist already.

    In the copy these are zeros: their values need not go through the trace. Attributes keep their order, and layers
    know in which call of symbolic tensors they were built first.
    """
    graphdef, state = nnx.split(module)
    known = set(leaf_parts(state))
    with _jax.without_eager_sharding():
        copy = nnx.merge(graphdef, jax.tree.map(_placeholder, state), copy=True)
    _jax.restore_order(copy, _jax.attribute_order(module))
    _hand_over_records(module, copy)
    return copy, known


def _hand_over_records(module: nnx.Module, copy: nnx.Module) -> None:
    """Tell the layers of a copy how those of the module were called first."""
    told = {
        path: node._outside
        for path, node in nnx.iter_graph(module)
        if isinstance(node, Recorded) and node._outside.nodes
    }
    copies = dict(nnx.iter_graph(copy)) if told else {}
    for path in told.keys() & copies.keys():
        copies[path]._outside.first_call = told[path].nodes[0]


def _placeholder(array: Any) -> Any:
    return array if _jax.is_key_dtype(array.dtype) else jnp.zeros(array.shape, array.dtype)
