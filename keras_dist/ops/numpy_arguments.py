"""Arguments of the names of NumPy: element types, axes, and arrays whose values must be known."""

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
"""A dim, several, or None for all."""


def axes(axis: Axes) -> Any:
    """Return a list of dims as a tuple, which JAX can hash; anything else as it is."""
    return tuple(axis) if isinstance(axis, list) else axis


def static(counts: Any) -> Any:
    """Return a list of integers as an array of NumPy, which JAX takes; anything else as it is."""
    return np.asarray(counts) if isinstance(counts, list | tuple) else counts


def sizes(counts: Any, name: str) -> Any:
    """Return the integers of a shape, or other counts of `ops.name`, as they are.

    Raises:
        ModelError: one is None, as the batch of symbolic tensors, or has no value inside of a compiled function.
    """
    several = counts if isinstance(counts, list | tuple) else [counts]
    if any(count is None or is_traced(count) for count in several):
        given = f"{shorten(counts)}: None is an unknown dim of a symbolic tensor, and tracers have no values"
        fix = "-1 in `ops.reshape`; or do it in `call` of a Layer, where `ops.shape(x)[0]` is an integer"
        raise ModelError(f"the shape of the result of `ops.{name}` is not known", given=given, fix=fix)
    return counts


def element_type_or_floatx(dtype: DTypeLike | None) -> Any:
    """Return an element type as JAX has it; for None that of weights."""
    return element_type(mixed_precision.dtype_policy().variable_dtype if dtype is None else dtype)


def known(x: Any, name: str, fix: str) -> Any:
    """Return `x` as an array, if it has values: the shape of the result of `name` depends on them.

    Raises:
        ModelError: it is symbolic, or an argument of a function that is compiled.
    """
    if is_traced(x):
        given = f"an array of shape {x.shape} without values: a symbolic tensor, or inside of a compiled step"
        raise ModelError(f"the shape of the result of `ops.{name}` depends on values", given=given, fix=fix)
    return as_array(x)


def known_number(x: Any, name: str, fix: str) -> Any:
    """Return `x`, a number or an array of one element, as a number of Python, if its value is known: see `known`.

    Numbers do not become arrays on the way, which have no values inside of compiled functions.
    """
    return np.asarray(known(x, name, fix) if isinstance(x, jax.Array) else x).item()
