"""Arguments of NumPy functions: element types, axes, and arrays whose values must be known."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from keras_dist import mixed_precision
from keras_dist._support.types import DTypeLike
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import ModelError, shorten
from keras_dist.ops.operation import as_array
from keras_dist.ops.operation import element_type as element_type

Axes: TypeAlias = int | Sequence[int] | None


def axes(axis: Axes) -> Any:
    """Convert a list of dims to a tuple, which JAX can hash."""
    return tuple(axis) if isinstance(axis, list) else axis


def static(counts: Any) -> Any:
    """Convert a list of integers to a NumPy array, which JAX accepts."""
    return np.asarray(counts) if isinstance(counts, list | tuple) else counts


def sizes(counts: Any, name: str) -> Any:
    """Return the sizes given to `ops.name`, unless one is None, as symbolic batch sizes are, or traced."""
    several = counts if isinstance(counts, list | tuple) else [counts]
    if any(count is None or is_traced(count) for count in several):
        given = f"{shorten(counts)}: None is an unknown dim of a symbolic tensor, and tracers have no values"
        fix = "-1 in `ops.reshape`; or do it in `call` of a Layer, where `ops.shape(x)[0]` is an integer"
        raise ModelError(f"the shape of the result of `ops.{name}` is not known", given=given, fix=fix)
    return counts


def element_type_or_floatx(dtype: DTypeLike | None) -> Any:
    """Return the element type that JAX uses for `dtype`; for None, the type of weights."""
    return element_type(mixed_precision.dtype_policy().variable_dtype if dtype is None else dtype)


def known(x: Any, name: str, fix: str) -> Any:
    """Return `x` as an array; raise if it is symbolic or traced, since the result shape of `name` depends on it."""
    if is_traced(x):
        given = f"an array of shape {x.shape} without values: a symbolic tensor, or inside of a compiled step"
        raise ModelError(f"the shape of the result of `ops.{name}` depends on values", given=given, fix=fix)
    return as_array(x)


def known_number(x: Any, name: str, fix: str) -> Any:
    """Return `x`, a number or an array of one element, as a Python number; see `known`."""
    # numbers must not become arrays, which have no values inside compiled functions
    return np.asarray(known(x, name, fix) if isinstance(x, jax.Array) else x).item()
