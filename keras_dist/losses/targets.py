"""Conversion of targets and predictions to arrays of matching shapes."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any, TypeGuard, overload

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import shapes
from keras_dist._support.array_operators import native, value_of
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import combinable
from keras_dist.errors import ModelError


def is_array(value: object) -> TypeGuard[jax.Array | np.ndarray]:
    """Whether `value` is an array of jax or numpy."""
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def from_numbers(value: PyTree) -> PyTree:
    """Convert numbers and nested lists of numbers to an array; return anything else unchanged."""
    leaves = jax.tree.leaves(value) if isinstance(value, list | tuple) else [value]
    return jnp.asarray(value) if leaves and all(isinstance(n, bool | int | float) for n in leaves) else value


def as_arrays(name: str, y_true: ArrayLike, y_pred: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Convert both to arrays of jax, and integer predictions to float32."""
    y_true, y_pred = from_numbers(y_true), from_numbers(y_pred)
    for argument, value in (("y_true", y_true), ("y_pred", y_pred)):
        if not is_array(value):
            keys = f" with {list(value)}" if isinstance(value, dict) else ""
            given = f"{argument} of type {type(value).__name__}{keys}"
            fix = "pass a callable (y_true, y_pred) of your own that takes them apart, or choose one with `call=`"
            raise ModelError(f"{name}: `{argument}` must be one array", given=given, fix=fix)
    y_true, y_pred = (jnp.asarray(native(combinable(value_of(value)))) for value in (y_true, y_pred))
    return y_true, y_pred if jnp.issubdtype(y_pred.dtype, jnp.inexact) else y_pred.astype(jnp.float32)


@overload
def align_ranks(y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]: ...
@overload
def align_ranks(y_true: PyTree, y_pred: PyTree) -> tuple[PyTree, PyTree]: ...
def align_ranks(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Add a last dim to (batch,) beside (batch, 1), or drop a last dim of 1 that only one of the arrays has."""
    if not (is_array(y_true) and is_array(y_pred)):
        return y_true, y_pred
    if y_true.ndim == y_pred.ndim + 1:
        y_pred, y_true = align_ranks(y_pred, y_true)
    elif y_pred.ndim == y_true.ndim + 1 and y_pred.shape[-1] == 1:
        return (y_true[:, None], y_pred) if y_true.ndim == 1 else (y_true, jnp.squeeze(y_pred, -1))
    return y_true, y_pred


def matched(name: str, y_true: ArrayLike, y_pred: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Convert both to arrays of the same shape and dtype.

    Predictions (batch, 1) are broadcast to targets (batch, n), as in Keras, with a warning. Other shapes that differ
    are an error, because broadcasting (8,) against (8, 1) would compare every pair.
    """
    y_true, y_pred = align_ranks(*as_arrays(name, y_true, y_pred))
    if y_true.ndim == y_pred.ndim > 1 and y_pred.shape == (*y_true.shape[:-1], 1) != y_true.shape:
        warn(
            f"{name}: one prediction is compared with each of {y_true.shape[-1]} targets, since y_true has the shape "
            f"{y_true.shape} and y_pred {y_pred.shape}. If that is not meant, change the last layer of the model"
        )
        y_pred = jnp.broadcast_to(y_pred, y_true.shape)
    if y_true.shape != y_pred.shape:
        given = shapes(y_true=y_true, y_pred=y_pred)
        fix = "reshape the targets, or change the last layer of the model"
        raise ModelError(f"{name}: targets must have the shape of the predictions", given=given, fix=fix)
    return y_true.astype(y_pred.dtype), y_pred


def as_rows(name: str, y_true: ArrayLike, y_pred: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return `matched` arrays, with (batch,) as (batch, 1), so that a mean over the last dim keeps the examples."""
    y_true, y_pred = matched(name, y_true, y_pred)
    return (y_true[:, None], y_pred[:, None]) if y_pred.ndim == 1 else (y_true, y_pred)
