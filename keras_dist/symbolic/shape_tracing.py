"""Tracing of shapes: a symbolic dim, or two sizes, in place of dims of unknown size."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from keras_dist._support.types import PyTree, Shape

if TYPE_CHECKING:
    from keras_dist.symbolic.tensors import KerasTensor

SIZES = (3360, 6720)
"""Two sizes for dims of unknown size, where a symbolic dim does not suffice: large enough for strides and pools, and
divisible by what reshapes divide by. No array of these sizes is allocated."""


@functools.cache
def symbolic_dim() -> Any:
    """Return JAX's symbolic dim for all dims of unknown size; slices and windows up to `SIZES[0]` fit into it."""
    return export.symbolic_shape("unknown", constraints=[f"unknown >= {SIZES[0]}"])[0]


def is_unknown(size: Any) -> bool:
    """Return whether a dim that a traced function sees stands for a dim of unknown size."""
    return not isinstance(size, int) or size in SIZES


def trace(
    run: Callable[[list[jax.ShapeDtypeStruct]], PyTree], tensors: Sequence[KerasTensor], size: Any = SIZES[0]
) -> PyTree:
    """Return `run(shapes)` for shapes like those of the tensors.

    Where it fails, batches of unknown size are taken to be as large as those of the other tensors; then all unknown
    sizes to be those with which they broadcast. A note of the error says what stands for unknown sizes.

    Args:
        run: a function of a list of shapes.
        tensors: with `shape` and `dtype`; dims may be None.
        size: in place of None: an integer, or `symbolic_dim()`.
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


def _filled(shapes: Sequence[Shape], tensors: Sequence[KerasTensor], size: Any) -> list[jax.ShapeDtypeStruct]:
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
