"""Arguments of a layer's call: checks, defaults, and shapes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError
from keras_dist.variables import call_context


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
