"""Tracing of layers for symbolic tensors: sizes in place of unknown dims, and copies of layers to build in a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist import _jax, _paths
from keras_dist._types import PyTree
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

    Where it fails, batches of unknown size are taken to be as large as those of the other tensors. A note of the error
    says what stands for unknown sizes.

    Args:
        run: a function of a list of shapes.
        tensors: with `shape` and `dtype`; dims may be None.
        size: in place of None.
    """
    try:
        return run(_shapes(tensors, size))
    except Exception as error:
        batch = _batch_of_others(tensors)
        if batch is not None:
            with contextlib.suppress(Exception):
                return run(_shapes(tensors, size, batch))
        if any(None in tensor.shape for tensor in tensors):
            error.add_note(f"{size} stands for a dim of unknown size (None), such as the batch")
        raise


def _shapes(tensors: Sequence[KerasTensor], size: int, batch: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """Return a shape for each tensor, with `size` for the dims of unknown size, and `batch` for such batches."""
    found = []
    for tensor in tensors:
        shape = [size if dim is None else dim for dim in tensor.shape]
        if batch is not None and shape and tensor.shape[0] is None:
            shape[0] = batch
        found.append(jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.canonicalize_dtype(tensor.dtype)))
    return found


def _batch_of_others(tensors: Sequence[KerasTensor]) -> int | None:
    """Return the one known size of batches, where others are unknown."""
    sizes = {tensor.shape[0] for tensor in tensors if tensor.shape}
    known = sizes - {None}
    return known.pop() if len(known) == 1 and len(sizes) == 2 else None


def fresh_copy(module: nnx.Module) -> tuple[nnx.Module, dict[_paths.Parts, jax.Array]]:
    """Return a copy of a module, to be changed in the current trace, and the arrays that the module has already.

    In the copy these are zeros: their values need not go through the trace. Attributes keep their order, and layers
    know in which call of symbolic tensors they were built first.
    """
    graphdef, state = nnx.split(module)
    known = dict(zip(leaf_parts(state), jax.tree.leaves(state), strict=True))
    with _jax.without_eager_sharding():
        copy = nnx.merge(graphdef, jax.tree.map(_placeholder, state), copy=True)
    _jax.restore_order(copy, _jax.attribute_order(module))
    _hand_over_calls(module, copy)
    return copy, known


def _hand_over_calls(module: nnx.Module, copy: nnx.Module) -> None:
    """Tell the layers of a copy how those of the module were called first."""
    copies = dict(nnx.iter_graph(copy))
    for path, node in nnx.iter_graph(module):
        if isinstance(node, Recorded) and node._outside.nodes and path in copies:
            copies[path]._outside.first_call = node._outside.nodes[0]


def _placeholder(array: Any) -> Any:
    return array if _jax.is_key_dtype(array.dtype) else jnp.zeros(array.shape, array.dtype)
