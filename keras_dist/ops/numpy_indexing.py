"""Elements by index, in order, and without repetitions."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import ArrayLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, names_in, operation


@operation
def get_item(x: ArrayLike, key: Any) -> jax.Array:
    """Return `x[key]`.

    Args:
        x: an array.
        key: an index, a slice, None, `...`, an array of indices or of truth values, or a tuple of these.
    """
    return as_array(x)[key]


@operation
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> jax.Array:
    """Return elements, or slices, by index; where there is none, NaN or the farthest integer of the element type.

    Args:
        x: an array.
        indices: integers in any shape, which takes the place of the dim; those below 0 count from the end.
        axis: the dim along which it goes; None to flatten the array first.
    """
    return jnp.take(as_array(x), as_array(indices), axis)


@operation
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> jax.Array:
    """Return elements by index along a dim, with indices of its own for each place in the others.

    Args:
        x: an array.
        indices: integers, with as many dims as `x`; as `argsort` and `argmax(..., keepdims=True)` give them.
        axis: the dim along which it goes; None to flatten the array first.
    """
    return jnp.take_along_axis(as_array(x), as_array(indices), axis)


@operation
def unravel_index(indices: ArrayLike, shape: Sequence[int]) -> tuple[jax.Array, ...]:
    """Return the indices in an array of elements that are counted in one row: an array for each dim.

    Args:
        indices: integers.
        shape: of the array.
    """
    return jnp.unravel_index(as_array(indices), shape)


@operation
def sort(x: ArrayLike, axis: int | None = -1) -> jax.Array:
    """Return the elements in ascending order.

    Args:
        x: an array.
        axis: the dim along which it goes; None to flatten the array first.
    """
    return jnp.sort(as_array(x), axis)


@operation
def argsort(x: ArrayLike, axis: int | None = -1) -> jax.Array:
    """Return the indices that bring the elements into ascending order.

    Args:
        x: an array.
        axis: the dim along which it goes; None to flatten the array first.
    """
    x = as_array(x)
    return jnp.argsort(x, None if x.ndim == 0 else axis)


@operation
def argpartition(x: ArrayLike, kth: int, axis: int | None = -1) -> jax.Array:
    """Return the indices of the smaller elements, then of the one at place `kth` in ascending order, then of the rest.

    Args:
        x: an array.
        kth: a place.
        axis: the dim along which it goes; None to flatten the array first.
    """
    x = as_array(x)
    return jnp.argpartition(x.ravel() if axis is None else x, kth, 0 if axis is None else axis)


@operation
def searchsorted(sorted_sequence: ArrayLike, values: ArrayLike, side: str = "left") -> jax.Array:
    """Return the indices at which values would be put into a sorted row.

    Args:
        sorted_sequence: a row in ascending order.
        values: an array.
        side: "left" for before equal elements, "right" for after them.

    Raises:
        ModelError: the sequence has another number of dims.
    """
    row = as_array(sorted_sequence)
    if row.ndim != 1:
        raise argument_error("sorted_sequence", sorted_sequence, "a row; ops.vectorized_map goes over several")
    return jnp.searchsorted(row, as_array(values), side=side)


@operation
def unique(
    x: ArrayLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return the different elements, or slices, of an array; with what else is asked for as a tuple.

    Args:
        x: an array.
        sorted: whether in ascending order; any order otherwise.
        return_index: whether to return where each is found first.
        return_inverse: whether to return which of them each element of `x` is.
        return_counts: whether to return how often each occurs.
        axis: the dim of the slices; None for elements.
        size: how many to return: needed for symbolic tensors and in compiled functions.
        fill_value: for those that are missing then; None for the least one.

    Raises:
        ModelError: without `size`, `x` has no values: their number would be the shape of the result.
    """
    array = as_array(x) if size is not None else arguments.known(x, "unique", "ops.unique(x, size=...)")
    return jnp.unique(
        array,
        return_index,
        return_inverse,
        return_counts,
        axis,
        equal_nan=False,
        size=size,
        fill_value=fill_value,
        sorted=sorted,
    )


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: set[int | str] | None = None, signature: str | None = None
) -> Callable[..., Any]:
    """Return a function of elements, or of dims that the signature names, as one of whole arrays.

    Args:
        pyfunc: the function.
        excluded: the numbers of arguments that are handed on as they are.
        signature: the dims of its arguments and results, as "(n),(n)->()"; None for elements.

    Raises:
        ModelError: it cannot be called.
    """
    if not callable(pyfunc):
        raise argument_error("pyfunc", pyfunc, "a function")
    return jnp.vectorize(pyfunc, excluded=excluded or set(), signature=signature)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
