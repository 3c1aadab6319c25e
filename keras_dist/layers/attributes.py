"""Attributes of layers: checks of names and element types, lists and dicts of sublayers, changes that are undone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from flax import nnx

from keras_dist._support.lending import Lendable
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.weight_arguments import Layout
from keras_dist.layers.weights import WeightOwner


def as_nnx_containers(value: Any) -> Any:
    """Convert lists, tuples and dicts that are empty or hold modules to `nnx.List` and `nnx.Dict`."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        items = [as_nnx_containers(item) for item in value]
        if any(isinstance(item, nnx.Module | nnx.Variable) for item in items) or value == []:
            return nnx.List(items)
    elif type(value) is dict:
        if value == {}:
            return nnx.Dict()
        items = {name: as_nnx_containers(item) for name, item in value.items()}
        if any(isinstance(item, nnx.Module | nnx.Variable) for item in items.values()):
            return nnx.Dict({str(name): item for name, item in items.items()})
    return value


def check_name(name: Any) -> str:
    """Return `name` if it is a valid layer name."""
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        summary = '`name` of a layer must be a string of printable characters without "/", which separates paths'
        raise ModelError(summary, given=f"name={shorten(name)}", fix='for example name="d1"')
    return name


def check_dtype(dtype: DTypeLike, layer: str) -> str:
    """Return the name of `dtype`; float32 for None."""
    try:
        return jnp.dtype("float32" if dtype is None else dtype).name
    except TypeError:
        summary = f"`dtype` of layer {layer!r} must be a name or numpy dtype"
        raise ModelError(summary, given=f"dtype={dtype!r}", fix='for example dtype="bfloat16"') from None


def take_input_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """Remove `input_shape`, `input_dim` and `batch_input_shape`; return the shape including the batch."""
    if kwargs.get("input_shape") is not None:
        return (None, *kwargs.pop("input_shape"))
    if kwargs.get("input_dim") is not None:
        return (None, kwargs.pop("input_dim"))
    if kwargs.get("batch_input_shape") is not None:
        return tuple(kwargs.pop("batch_input_shape"))
    return None


def axes_of(layout: Layout) -> list[str | list[str] | None] | None:
    """Return the axes of a `TensorLayout`, or of a sequence of axes, as a list."""
    axes: Any = getattr(layout, "axes", layout)
    return None if axes is None else [list(axis) if isinstance(axis, tuple) else axis for axis in axes]


@contextlib.contextmanager
def undone_on_error(module: Any) -> Iterator[None]:
    """Restore the attributes of a module, and the weights of a layer, if an error is raised inside."""
    attributes = dict(vars(module))
    weights = module.weights if isinstance(module, WeightOwner) else []
    kinds = [(value, type(value), dict(value.get_metadata())) for value in weights if isinstance(value, Lendable)]
    try:
        yield
    except BaseException:
        vars(module).clear()
        vars(module).update(attributes)
        for variable, kind, metadata in kinds:
            object.__setattr__(variable, "__class__", kind)

            variable.set_metadata(metadata)
        raise
