"""Sizes in the place of dims of unknown size, so that JAX can trace what happens to symbolic tensors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from keras_dist.errors import KerasDistError

SIZES = (3360, 6720)
"""Two sizes for dims of unknown size: large enough for strides and pools, and divisible by what reshapes divide by.
Nothing of these sizes is ever allocated. What differs between the two depends on a dim of unknown size."""

_INTEGER = re.compile(r"(?<![\w.])(\d+)(?!\w)")


def trace(run: Callable[[list[jax.ShapeDtypeStruct]], Any], tensors: Sequence[Any], size: int = SIZES[0]) -> Any:
    """`run(shapes)`, with shapes like those of the tensors.

    Where it fails, batches of unknown size are taken to be as large as those of the other tensors. Errors show None for
    what depends on a dim of unknown size.

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
        _hide_sizes(error, _error_of(run, _shapes(tensors, sum(SIZES) - size)))
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


def _error_of(run: Callable[[Any], Any], shapes: Any) -> Exception | None:
    try:
        run(shapes)
    except Exception as error:
        return error
    return None


def _hide_sizes(error: Exception, other: Exception | None) -> None:
    """Put None in the place of the numbers in a message that are others in that of `other`."""
    if other is None or type(other) is not type(error):
        return
    error.args = tuple(_without_sizes(text, again) for text, again in zip(error.args, other.args, strict=False))
    if isinstance(error, KerasDistError):
        for part in ("summary", "given", "expected", "fix"):
            setattr(error, part, _without_sizes(getattr(error, part), getattr(other, part)))


def _without_sizes(text: Any, again: Any) -> Any:
    if not isinstance(text, str) or not isinstance(again, str):
        return text
    parts, others = _INTEGER.split(text), _INTEGER.split(again)
    if len(parts) != len(others):
        return text
    # every second part is a number
    return "".join("None" if i % 2 and a != b else a for i, (a, b) in enumerate(zip(parts, others, strict=True)))
