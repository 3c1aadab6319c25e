"""Sizes in the place of dims of unknown size, so that JAX can trace what happens to symbolic tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

SIZES = (3360, 6720)
"""Two sizes for dims of unknown size: large enough for strides and pools, and divisible by what reshapes divide by.
Nothing of these sizes is ever allocated. What differs between the two depends on a dim of unknown size."""


def trace(run: Callable[[list[jax.ShapeDtypeStruct]], Any], tensors: Sequence[Any], size: int = SIZES[0]) -> Any:
    """`run(shapes)`, with shapes like those of the tensors.

    Where it fails, batches of unknown size are taken to be as large as those of the other tensors. A note on errors
    tells which size stands for None.

    Args:
        run: traces something.
        tensors: with `shape` and `dtype`; dims may be None.
        size: in the place of None.
    """
    try:
        return run(_shapes(tensors, size))
    except Exception as error:
        batch = _batch_of_others(tensors)
        if batch is not None:
            with contextlib.suppress(Exception):
                return run(_shapes(tensors, size, batch))
        if any(dim is None for tensor in tensors for dim in tensor.shape):
            error.add_note(f"{size} stands for a dim of unknown size (None), such as the batch")
        raise


def _shapes(tensors: Sequence[Any], size: int, batch: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """A shape for each tensor, with `size` for the dims of unknown size, and `batch` for such batches."""
    found = []
    for tensor in tensors:
        shape = [size if dim is None else dim for dim in tensor.shape]
        if batch is not None and shape and tensor.shape[0] is None:
            shape[0] = batch
        found.append(jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.canonicalize_dtype(tensor.dtype)))
    return found


def _batch_of_others(tensors: Sequence[Any]) -> int | None:
    """The one size that batches of known size have, where others are unknown."""
    sizes = {tensor.shape[0] for tensor in tensors if tensor.shape}
    known = sizes - {None}
    return known.pop() if len(known) == 1 and len(sizes) == 2 else None
