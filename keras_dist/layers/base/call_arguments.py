"""Arguments of a layer's call: `InputSpec`, checks, defaults, and shapes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.errors import ModelError, with_type
from keras_dist.variables import call_context


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


@functools.lru_cache(maxsize=1024)
def call_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of `cls.call` without the first one, the layer."""
    parameters = inspect.signature(cls.call).parameters  # type: ignore[attr-defined]
    is_bound = isinstance(inspect.getattr_static(cls, "call"), staticmethod | classmethod)
    named = list(parameters.items())
    takes_layer = not is_bound and bool(named) and named[0][1].kind is not inspect.Parameter.VAR_POSITIONAL
    return dict(named[1:] if takes_layer else named)


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether the parameters include `**kwargs`."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def check_complete(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any], layer: str
) -> None:
    """Check that a call passes each parameter without a default."""
    named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in named[len(args) :] if p.default is p.empty and p.name not in kwargs]
    if needed:
        given = f"{len(args)} argument(s)" + "".join(f", {name}" for name in kwargs)
        fix = f"layer({', '.join(p.name if p.default is p.empty else f'{p.name}=...' for p in named[:4])})"
        raise ModelError(f"the call of layer {layer!r} lacks {', '.join(map(repr, needed))}", given=given, fix=fix)


def check_numbers(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any], layer: str
) -> None:
    """Check that the NumPy arrays of a call hold numbers or bools, and only integers that fit 32 bits."""
    for name, value in (*zip(parameters, args, strict=False), *kwargs.items()):
        for path, array in jax.tree_util.tree_leaves_with_path(value):
            if not isinstance(array, np.ndarray):
                continue
            place = "".join(f"[{part!r}]" for part in tree_paths.parts_of(path))
            check_fits(array, f"{name}{place} of layer {layer!r}")
            if array.dtype.kind in "OSUTMm":
                given = f"an array of shape {array.shape}, dtype {array.dtype}"
                fix = "convert it: words and categories into integers, for layers.Embedding"
                raise ModelError(f"`{name}` of layer {layer!r} must hold numbers or booleans", given=given, fix=fix)


def value_given(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, default: Any
) -> Any:
    """Return the value that a call passes for a parameter; `default` if it is missing or None."""
    position = list(parameters).index(name)
    value = args[position] if position < len(args) else kwargs.get(name)
    return default if value is None else value


def training_of(parameters: Mapping[str, inspect.Parameter], context: call_context.CallContext) -> bool:
    """Return `training` for a call without it: the value of the enclosing call, else the default."""
    return bool(parameters["training"].default is True if context.training is None else context.training)


def tensor_arguments(
    parameters: Mapping[str, inspect.Parameter],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kinds: type | tuple[type, ...] = (jax.Array, np.ndarray),
) -> dict[str, PyTree]:
    """Return the arguments of a call that contain arrays, or other `kinds`, by name."""
    names = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    named = {names[index] if index < len(names) else f"arg{index}": value for index, value in enumerate(args)}
    named |= {name: value for name, value in kwargs.items() if not name.endswith("mask")}
    return {
        name: value for name, value in named.items() if any(isinstance(leaf, kinds) for leaf in jax.tree.leaves(value))
    }


def called_with_shapes(function: Callable[..., PyTree], tensors: Mapping[str, PyTree]) -> PyTree:
    """Call a function of shapes, such as `build`, with the shapes of tensors by name.

    A single parameter gets the shape of the first tensor; several get the shapes they name: `value_shape` of `value`.
    """
    shapes = {f"{name}_shape": jax.tree.map(_shape, tensor) for name, tensor in tensors.items()}
    parameters = inspect.signature(function).parameters
    if len(parameters) == 1:
        return function(next(iter(shapes.values()), None))
    named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    lost = [p.name for p in named if p.default is p.empty and p.name not in shapes]
    if lost:
        label = getattr(function, "__qualname__", "build")
        summary = f"{label} takes {', '.join(map(repr, lost))}, which is the shape of no argument of the call"
        given = f"{label}({', '.join(p.name for p in named)}) for {', '.join(tensors) or 'no arrays'}"
        expected = f"one parameter, or some of {', '.join(shapes) or 'none'}"
        fix = "call it as the argument whose shape it is, with `_shape` at the end, or give it a default"
        raise ModelError(summary, given=given, expected=expected, fix=fix)
    return function(**{p.name: shapes[p.name] for p in named if p.name in shapes})


def as_shapes(shapes: PyTree) -> PyTree:
    """Convert lists of sizes, as in JSON, to tuples."""
    if isinstance(shapes, dict):
        return {name: as_shapes(shape) for name, shape in shapes.items()}
    if not isinstance(shapes, list | tuple):
        return shapes
    if all(size is None or isinstance(size, int) for size in shapes):
        return tuple(shapes)
    return type(shapes)(map(as_shapes, shapes))


def _shape(leaf: Any) -> tuple[int | None, ...]:
    return leaf.shape if hasattr(leaf, "shape") else jnp.shape(leaf)
