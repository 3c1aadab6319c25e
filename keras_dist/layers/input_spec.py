"""`InputSpec`: rank, sizes and element type that a layer requires of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.errors import ModelError, with_type


class InputSpec:
    """Rank, sizes and element type that a layer requires of an input.

    Args:
        dtype: element type.
        shape: sizes of the dims; None for any size.
        ndim: number of dims.
        max_ndim: largest number of dims.
        min_ndim: smallest number of dims.
        axes: sizes of single dims, by index; None for any size.
        allow_last_axis_squeeze: whether a last dim of size 1 may be missing or added.
        name: unused, as in Keras.
        optional: whether the input may be None.

    Source: `keras.InputSpec`.
    """

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        shape: Sequence[int | None] | None = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: Mapping[int, int | None] | None = None,
        allow_last_axis_squeeze: bool = False,
        name: str | None = None,
        optional: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)
        self.ndim = len(self.shape) if self.shape is not None else ndim
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        self.axes = dict(axes or {})
        self.allow_last_axis_squeeze = allow_last_axis_squeeze
        self.name = name
        self.optional = optional

    def problem(self, shape: Sequence[int | None], dtype: DTypeLike | None) -> str:
        """Return what is required of an input that does not fit; an empty string if it fits."""
        rank = len(shape)
        if self.ndim is not None and rank != self.ndim and not (self.allow_last_axis_squeeze and self._squeezes(shape)):
            return f"rank {self.ndim}"
        if self.max_ndim is not None and rank > self.max_ndim:
            return f"rank {self.max_ndim} at most"
        if self.min_ndim is not None and rank < self.min_ndim:
            return f"rank {self.min_ndim} at least"
        if self.dtype is not None and np.dtype(self.dtype) != np.dtype(dtype):
            return f"dtype {self.dtype}"
        sizes = {**dict(enumerate(self.shape or ())), **self.axes}
        for dim, size in sizes.items():
            if size is not None and -rank <= dim < rank and shape[dim] not in (size, None):
                return f"{size} in dim {dim}"
        return ""

    def _squeezes(self, shape: Sequence[int | None]) -> bool:
        difference = len(shape) - (self.ndim or 0)
        wanted = self.shape or (self.axes.get(-1),)
        return (difference == -1 and wanted[-1] == 1) or (difference == 1 and shape[-1] == 1)


def check_inputs(specs: PyTree, inputs: PyTree, layer_name: str) -> None:
    """Check inputs against an `InputSpec`, or a list or dict of them; None accepts anything."""
    if specs is None:
        return
    wanted = [specs] if isinstance(specs, InputSpec) else jax.tree.leaves(specs, is_leaf=_is_spec)
    found = jax.tree.leaves(inputs, is_leaf=_is_none) if isinstance(specs, InputSpec) else _in_order(specs, inputs)
    if len(wanted) != len(found):
        given = f"{len(found)} input(s)"
        fix = "pass the inputs as one list" if len(wanted) > 1 else "join them first: layers.Concatenate()(inputs)"
        raise ModelError(f"layer {layer_name!r} must get {len(wanted)} input(s)", given=given, fix=fix)
    for index, (spec, value) in enumerate(zip(wanted, found, strict=True)):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None and isinstance(specs, InputSpec) and not spec.optional:
            fix = "np.asarray(inputs), with the batch as the first dim"
            raise ModelError(f"the input of layer {layer_name!r} is not an array", given=with_type(value), fix=fix)
        if shape is None:
            continue  # an optional input, or a nested one
        expected = spec.problem(shape, dtype)
        if expected:
            which = "the input" if len(wanted) == 1 else f"input {index}"
            given = f"shape {tuple(shape)}, dtype {dtype}"
            fix = "reshape the input, for example with Flatten, Reshape or expand_dims; the first dim is the batch"
            if expected == "rank 3" and len(shape) == 2:
                fix += "; a recurrent layer before it needs return_sequences=True"
            raise ModelError(f"{which} of layer {layer_name!r} does not fit", given=given, expected=expected, fix=fix)


def _in_order(specs: PyTree, inputs: PyTree) -> list[Any]:
    if isinstance(specs, Mapping) and isinstance(inputs, Mapping):
        return [inputs.get(name) for name in sorted(specs)]
    return list(inputs) if isinstance(inputs, list | tuple) else jax.tree.leaves(inputs)


def _is_none(value: Any) -> bool:
    return value is None


def _is_spec(value: Any) -> bool:
    return isinstance(value, InputSpec)
