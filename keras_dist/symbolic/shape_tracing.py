"""Tracing of shapes, with a symbolic dim, or two sizes, for dims of unknown size."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from keras_dist._support.types import PyTree, Shape
from keras_dist.errors import KerasDistError

if TYPE_CHECKING:
    from keras_dist.symbolic.tensors import KerasTensor

SIZES = (3360, 6720)
"""Two sizes for dims of unknown size where a symbolic dim does not suffice: large enough for strides and pools, and
divisible by many numbers, for reshapes. No array of these sizes is allocated."""


@functools.cache
def symbolic_dim() -> Any:
    """Return JAX's symbolic dim for all dims of unknown size, at least `SIZES[0]`."""
    return export.symbolic_shape("unknown", constraints=[f"unknown >= {SIZES[0]}"])[0]


def sizes_of_unknown(shapes: Sequence[Shape], arrays: Sequence[Any]) -> frozenset[int]:
    """Return the sizes that stand for unknown ones in traced arrays of these shapes; JAX's symbolic dim is known."""
    pairs = [pair for shape, array in zip(shapes, arrays, strict=True) for pair in zip(shape, array.shape, strict=True)]
    return frozenset(size for known, size in pairs if known is None and size in SIZES)


def trace(
    run: Callable[[list[jax.ShapeDtypeStruct]], PyTree], tensors: Sequence[KerasTensor], size: Any = SIZES[0]
) -> PyTree:
    """Return `run(shapes)` for the shapes of the tensors, with `size` for unknown sizes.

    If it fails, unknown batch sizes become the batch size of the other tensors; then all unknown sizes become the sizes
    with which they broadcast.
    """
    shapes = [tensor.shape for tensor in tensors]
    try:
        return run(_filled(shapes, tensors, size))
    except Exception as error:
        for others in (_with_batch_of_others(shapes), _as_broadcast(shapes)):
            if others != shapes:
                with contextlib.suppress(Exception):
                    return run(_filled(others, tensors, size))
        if any(None in shape for shape in shapes) and size == SIZES[0]:
            try:
                run(_filled(shapes, tensors, SIZES[1]))
            except Exception as other:
                _show_unknown(error, other)
            if re.search(rf"\b({SIZES[0]}|{SIZES[1]})\b", str(error)):
                error.add_note(f"{SIZES[0]} stands for a dim of unknown size (None), such as the batch")
        raise


def _show_unknown(error: Exception, other: Exception) -> None:
    """Print None for numbers in an error that differ in the error of another size of the unknown dims."""
    if isinstance(error, KerasDistError) and isinstance(other, KerasDistError):
        for part in ("summary", "given", "expected", "fix"):
            setattr(error, part, _without_unknown(getattr(error, part), getattr(other, part)))
    elif type(error) is type(other) and [type(arg) for arg in (*error.args, *other.args)] == [str, str]:
        error.args = (_without_unknown(error.args[0], other.args[0]),)


def _without_unknown(text: str, other: str) -> str:
    parts, others = (re.split(r"(\d+)", one) for one in (text, other))
    if parts[::2] != others[::2]:
        return re.sub(rf"\b{SIZES[0]}\b", "None", text)
    return "".join(part if part == again else "None" for part, again in zip(parts, others, strict=True))


def _filled(shapes: Sequence[Shape], tensors: Sequence[KerasTensor], size: Any) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(
            tuple(size if dim is None else dim for dim in shape), jax.dtypes.canonicalize_dtype(tensor.dtype)
        )
        for shape, tensor in zip(shapes, tensors, strict=True)
    ]


def _with_batch_of_others(shapes: Sequence[Shape]) -> list[Shape]:
    """Replace unknown batch sizes by the only known one."""
    sizes = {shape[0] for shape in shapes if shape}
    known = sizes - {None}
    if len(known) != 1 or len(sizes) != 2:
        return [*shapes]
    return [(*known, *shape[1:]) if shape and shape[0] is None else shape for shape in shapes]


def _as_broadcast(shapes: Sequence[Shape]) -> list[Shape]:
    """Replace unknown sizes by the only known one of this dim, counted from the last."""

    def size(place: int) -> int | None:
        known = {shape[place] for shape in shapes if len(shape) >= -place} - {None, 1}
        return known.pop() if len(known) == 1 else None

    return [
        tuple(size(place) if shape[place] is None else shape[place] for place in range(-len(shape), 0))
        for shape in shapes
    ]
