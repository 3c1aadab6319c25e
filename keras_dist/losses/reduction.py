"""Reduction of the values of a loss, with weights and masks."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import shapes
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.losses.targets import is_array

_MEANS = ("sum_over_batch_size", "mean")
REDUCTIONS = (*_MEANS, "sum", "mean_with_sample_weight", "none", None)


def split_reported(returned: object) -> tuple[Any, dict[str, jax.Array]]:
    """Split the result of a loss into its values and scalars to log: `(values, {"name": scalar})`."""
    pair = cast("tuple[object, ...]", returned) if isinstance(returned, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[1], Mapping):
        return cast("object", returned), {}
    values, reported = pair[0], cast("Mapping[object, Any]", pair[1])
    for name, value in reported.items():
        if not isinstance(name, str) or not (is_array(value) or isinstance(value, int | float)) or jnp.shape(value):
            given = f"{shorten(value)} of shape {jnp.shape(value)}" if is_array(value) else shorten(value)
            fix = f'reduce it in the loss: {{"{name}": jnp.mean(...)}}'
            raise ModelError(f"`loss` must return scalars to log, not {shorten(name)}", given=given, fix=fix)
    return values, {cast("str", name): jnp.asarray(value) for name, value in reported.items()}


def check_values(values: object, y_true: PyTree, y_pred: PyTree) -> jax.Array:
    """Return `values`; raise unless it is a scalar or has the batch dim of `y_true` and `y_pred`."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves((y_true, y_pred))]
    rows = {shape[0] for shape in shapes if shape}
    expected = f"a scalar, or values of shape ({' or '.join(map(str, sorted(rows)))}, ...)"
    if not (is_array(values) or isinstance(values, int | float)):
        fix = "return one array from the loss"
        raise ModelError("`loss` did not return an array", given=with_type(values), expected=expected, fix=fix)
    shape = jnp.shape(values)
    pair = shape[:1] * 2
    compares_all = y_true is not None and shape[:2] == pair != (1, 1) and all(s[:2] != pair for s in shapes)
    if shape and rows and (compares_all or shape[0] not in rows):
        given = f"shape {shape} from arrays of shapes {', '.join(map(str, shapes))}"
        fix = "give y_true and y_pred one shape in the loss, and reduce over all dims but the first"
        raise ModelError("`loss` returned no value for each example", given=given, expected=expected, fix=fix)
    values = jnp.asarray(values)
    return values if jnp.issubdtype(values.dtype, jnp.inexact) else values.astype(jnp.float32)


def reduce_values(
    values: jax.Array,
    sample_weight: ArrayLike | None = None,
    masks: Sequence[ArrayLike] = (),
    reduction: str | None = "mean",
) -> jax.Array:
    """Reduce weighted values; weights and masks have a leading shape of the values, or broadcast to them.

    "sum_over_batch_size" and "mean" divide the weighted sum by the number of unmasked values, "mean_with_sample_weight"
    by the sum of weights. Source: `keras.src.losses.loss.reduce_weighted_values`.
    """
    weight = None if sample_weight is None else _fit("sample_weight", sample_weight, values).astype(values.dtype)
    if masks:
        counts = functools.reduce(jnp.logical_and, [_fit("mask", mask, values).astype(bool) for mask in masks])
        values = jnp.where(counts, values, 0)  # masked values may be NaN
        share = counts.size / jnp.maximum(jnp.sum(counts), 1) if reduction in _MEANS else 1
        counts = (counts * share).astype(values.dtype)
        weight = counts if weight is None else weight * counts
    if weight is not None:
        values = values * weight
    if reduction in ("none", None):
        return values
    if reduction == "sum":
        return jnp.sum(values)
    if reduction == "mean_with_sample_weight" and weight is not None:
        total = jnp.sum(weight)
        return jnp.where(total == 0, 0, jnp.sum(values) / jnp.where(total == 0, 1, total))
    return jnp.sum(values) / max(values.size, 1)


def divisor_of(
    values: jax.Array,
    sample_weight: ArrayLike | None = None,
    masks: Sequence[ArrayLike] = (),
    reduction: str | None = "mean",
) -> ArrayLike:
    """Return the divisor of `reduce_values`; the mean of losses, weighted by it, is the loss of all rows."""
    weights = [_fit("mask", mask, values).astype(bool).astype(jnp.float32) for mask in masks]
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights.append(_fit("sample_weight", sample_weight, values).astype(jnp.float32))
    elif reduction == "mean_with_sample_weight" or reduction in _MEANS:
        weights.append(jnp.ones(values.shape, jnp.float32))
    else:
        return 1.0
    return jnp.sum(functools.reduce(jnp.multiply, weights))


def _fit(name: str, given: ArrayLike, values: jax.Array) -> jax.Array:
    """Return `given` with as many dims as `values`, to broadcast against them."""
    array = jnp.asarray(given)
    if array.ndim == values.ndim + 1 and array.shape[-1] == 1:
        array = jnp.squeeze(array, -1)
    starts = values.shape[: array.ndim] == array.shape
    broadcasts = array.ndim == values.ndim and all(n in (1, m) for n, m in zip(array.shape, values.shape, strict=True))
    if not (starts or broadcasts):
        raise ModelError(
            f"`{name}` does not fit the loss",
            given=shapes(**{name: array, "loss": values}),
            fix="let the loss return one value for each example instead of their mean"
            if values.ndim == 0
            else f"give {name} the shape {values.shape}, its beginning, or as many dims",
        )
    return array.reshape(array.shape + (1,) * (values.ndim - array.ndim))
