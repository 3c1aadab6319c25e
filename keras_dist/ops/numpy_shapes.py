"""Shapes, joining and splitting, indexing and sorting, as in `jax.numpy`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.numpy_arguments import Axes
from keras_dist.ops.operation import as_array, dims_of, names_in, notes_arguments, operation, unary

fliplr = unary("fliplr", jnp.fliplr, "Reverse the second dim: the columns of a matrix.")
flipud = unary("flipud", jnp.flipud, "Reverse the first dim: the rows of a matrix.")
ndim = unary("ndim", jnp.ndim, "Return the number of dims.")
ravel = unary("ravel", jnp.ravel, "Flatten the array to one dim.")
size = unary("size", jnp.size, "Return the number of elements.")


@operation
def broadcast_to(x: ArrayLike, shape: int | Sequence[int]) -> jax.Array:
    """Broadcast `x` to `shape`."""
    return jnp.broadcast_to(as_array(x), arguments.sizes(shape, "broadcast_to"))


@operation
def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> jax.Array:
    """Insert dims of size 1 at the positions `axis` of the result."""
    return jnp.expand_dims(as_array(x), axis)


@operation
def flip(x: ArrayLike, axis: Axes = None) -> jax.Array:
    """Reverse the elements along the dims `axis`; None for all dims."""
    return jnp.flip(as_array(x), arguments.axes(axis))


@operation
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> jax.Array:
    """Move the dims `source` to the positions `destination`; the others keep their order."""
    return jnp.moveaxis(as_array(x), source, destination)


@operation
def pad(
    x: ArrayLike,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    constant_values: ArrayLike | None = None,
) -> jax.Array:
    """Pad an array.

    Args:
        x: an array.
        pad_width: `(before, after)` for each dim; one pair or number for all.
        mode: `"constant"`, `"edge"`, `"reflect"`, `"symmetric"`, `"wrap"`, or another mode of `jax.numpy.pad`.
        constant_values: the number for mode `"constant"`; None for 0.

    Raises:
        ModelError: `constant_values` is given for another mode.
    """
    if constant_values is None:
        return jnp.pad(as_array(x), pad_width, mode)
    if mode != "constant":
        raise argument_error("constant_values", constant_values, f"None for mode {mode!r}")
    return jnp.pad(as_array(x), pad_width, mode, constant_values=constant_values)


@operation
def repeat(x: ArrayLike, repeats: ArrayLike | Sequence[int], axis: int | None = None) -> jax.Array:
    """Repeat each element along `axis`; `repeats` is one count or one per element. `axis=None` flattens first."""
    return jnp.repeat(as_array(x), arguments.static(repeats), axis)


@operation
def reshape(x: ArrayLike, newshape: int | Sequence[int]) -> jax.Array:
    """Reshape an array; one size may be -1 and follows from the others.

    Raises:
        ModelError: a size is below -1 or not known, or more than one is -1.
    """
    newshape = arguments.sizes(newshape, "reshape")
    given: Any = newshape if isinstance(newshape, list | tuple) else [newshape]
    is_known = all(isinstance(size, int | np.integer) for size in given)
    if is_known and [size for size in given if size < 0] not in ([], [-1]):
        raise argument_error("newshape", newshape, "sizes from 0 on, and at most one -1")
    return jnp.reshape(as_array(x), newshape)  # pyright: ignore[reportArgumentType]


@operation
def roll(x: ArrayLike, shift: ArrayLike | Sequence[int], axis: Axes = None) -> jax.Array:
    """Shift elements cyclically along the dims `axis`; None rolls the flattened array, and restores its shape.

    Several dims take as many shifts, or one for all.
    """
    return jnp.roll(as_array(x), arguments.static(shift), arguments.axes(axis))


@operation
def rot90(array: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> jax.Array:
    """Rotate an array `k` times by 90 degrees, from the first of two dims towards the second.

    Raises:
        ModelError: the array has fewer than two dims, or `axes` are not two different dims.
    """
    array = as_array(array)
    if array.ndim < 2:
        raise argument_error("array", array, "an array of two dims or more")
    if len(axes) != 2 or axes[0] == axes[1]:
        raise argument_error("axes", axes, "a tuple of two different dims", example=(0, 1))
    return jnp.rot90(array, k, (axes[0], axes[1]))


@operation
def squeeze(x: ArrayLike, axis: Axes = None) -> jax.Array:
    """Remove dims of size 1; `axis=None` removes all of them."""
    return jnp.squeeze(as_array(x), arguments.axes(axis))


@operation
def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> jax.Array:
    """Exchange two dims."""
    return jnp.swapaxes(as_array(x), axis1, axis2)


@operation
def tile(x: ArrayLike, repeats: int | Sequence[int]) -> jax.Array:
    """Repeat the array `repeats` times along each dim; further counts add dims in front."""
    return jnp.tile(as_array(x), arguments.sizes(repeats, "tile"))


@operation
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> jax.Array:
    """Permute the dims into the order `axes`; None reverses them."""
    return jnp.transpose(as_array(x), axes)


@operation
def view(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Reinterpret the bits as another element type, which changes the last dim if its size differs."""
    return as_array(x).view(arguments.element_type(dtype))


@operation
def append(x1: ArrayLike, x2: ArrayLike, axis: int | None = None) -> jax.Array:
    """Concatenate two arrays along `axis`; None flattens them first."""
    return jnp.append(as_array(x1), as_array(x2), axis)


@operation
def concatenate(xs: Sequence[ArrayLike], axis: int | None = 0) -> jax.Array:
    """Concatenate arrays along `axis`; None flattens them first."""
    return jnp.concatenate([*map(as_array, xs)], axis)


@operation
def stack(x: Sequence[ArrayLike], axis: int = 0) -> jax.Array:
    """Stack arrays of one shape along a new dim at position `axis`."""
    return jnp.stack([*map(as_array, x)], axis)


@operation
def hstack(xs: Sequence[ArrayLike]) -> jax.Array:
    """Stack arrays horizontally, along the second dim; 1-D arrays are concatenated along axis 0."""
    return jnp.hstack([*map(as_array, xs)])


@operation
def vstack(xs: Sequence[ArrayLike]) -> jax.Array:
    """Stack arrays vertically, along the first dim; 1-D arrays become rows."""
    return jnp.vstack([*map(as_array, xs)])


@operation
def dstack(xs: Sequence[ArrayLike]) -> jax.Array:
    """Stack arrays along the third dim, which is added if it is missing."""
    return jnp.dstack([*map(as_array, xs)])


@operation
def split(x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[jax.Array]:
    """Split an array along `axis`.

    Args:
        x: an array.
        indices_or_sections: the number of equal parts, or the indices at which all parts but the first start.
        axis: the dim.

    Raises:
        ModelError: the array does not have this dim.
    """
    array = as_array(x)
    (dim,) = dims_of(array, axis)
    return jnp.split(array, arguments.static(indices_or_sections), dim)


@operation
def array_split(x: ArrayLike, indices_or_sections: int, axis: int = 0) -> list[jax.Array]:
    """Split an array along `axis` into parts whose sizes differ by at most 1.

    Raises:
        ModelError: `indices_or_sections` is not a positive number, or the array does not have this dim.
    """
    if not is_int(indices_or_sections, 1):
        raise argument_error("indices_or_sections", indices_or_sections, "an integer from 1 on", example=2)
    array = as_array(x)
    (dim,) = dims_of(array, axis)
    return jnp.array_split(array, indices_or_sections, dim)


@operation
def hsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[jax.Array]:
    """Split an array along the second dim, a 1-D array along its only dim; see `split`."""
    return jnp.hsplit(as_array(x), arguments.static(indices_or_sections))


@operation
def vsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[jax.Array]:
    """Split an array along the first dim; see `split`."""
    return jnp.vsplit(as_array(x), arguments.static(indices_or_sections))


@operation
def dsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[jax.Array]:
    """Split an array along the third dim; see `split`."""
    return jnp.dsplit(as_array(x), arguments.static(indices_or_sections))


@operation
def get_item(x: ArrayLike, key: Any) -> jax.Array:
    """Return `x[key]`; `key` is an index, slice, None, `...`, array of indices or of bools, or a tuple of these."""
    return as_array(x)[key]


@operation
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> jax.Array:
    """Take values at `indices` along `axis`.

    Args:
        x: an array.
        indices: integers of any shape, which replaces the dim; negative ones count from the end. Indices out of range
            give NaN, or for integers the extreme value of the element type.
        axis: the dim; None to flatten `x` first.
    """
    return jnp.take(as_array(x), as_array(indices), axis)


@operation
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> jax.Array:
    """Take values along `axis` at `indices`, which has as many dims as `x`; None flattens first. See `argsort`."""
    return jnp.take_along_axis(as_array(x), as_array(indices), axis)


@operation
def unravel_index(indices: ArrayLike, shape: Sequence[int]) -> tuple[jax.Array, ...]:
    """Convert indices of the flattened array to indices of an array of `shape`: one array for each dim."""
    return jnp.unravel_index(as_array(indices), shape)


@operation
def sort(x: ArrayLike, axis: int | None = -1) -> jax.Array:
    """Sort in ascending order along `axis`; None flattens first."""
    return jnp.sort(as_array(x), axis)


@operation
def argsort(x: ArrayLike, axis: int | None = -1) -> jax.Array:
    """Return the indices that sort `x` in ascending order along `axis`; None flattens first."""
    x = as_array(x)
    return jnp.argsort(x, None if x.ndim == 0 else axis)


@operation
def argpartition(x: ArrayLike, kth: int, axis: int | None = -1) -> jax.Array:
    """Return indices along `axis`: of elements smaller than the `kth` one, of the `kth` one, then of the others."""
    x = as_array(x)
    return jnp.argpartition(x.ravel() if axis is None else x, kth, 0 if axis is None else axis)


@operation
def searchsorted(sorted_sequence: ArrayLike, values: ArrayLike, side: str = "left") -> jax.Array:
    """Return the indices at which `values` would be inserted into an ascending vector.

    Before equal elements with `side="left"`, after them with `"right"`.

    Raises:
        ModelError: `sorted_sequence` is not a vector.
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
    """Return the unique elements, or slices, of an array; a tuple if further results are requested.

    Args:
        x: an array.
        sorted: whether in ascending order; otherwise in any order.
        return_index: whether to return the index of the first occurrence of each.
        return_inverse: whether to return, for each element of `x`, the index of its unique element.
        return_counts: whether to return the number of occurrences of each.
        axis: the dim of the slices; None for elements.
        size: number of results; required for symbolic tensors and in compiled functions.
        fill_value: pads the results to `size`; None for the smallest element.

    Raises:
        ModelError: `size` is None and `x` is symbolic or traced: the shape of the result would be unknown.
    """
    array = as_array(x) if size is not None else arguments.known(x, "unique", "ops.unique(x, size=...)")
    results = (return_index, return_inverse, return_counts)
    return jnp.unique(array, *results, axis, equal_nan=False, size=size, fill_value=fill_value, sorted=sorted)


@notes_arguments
def vectorize(
    pyfunc: Callable[..., Any], *, excluded: set[int | str] | None = None, signature: str | None = None
) -> Callable[..., Any]:
    """Return a function of elements, or of the dims named in `signature`, as a function of whole arrays.

    Args:
        pyfunc: the function.
        excluded: positions of arguments that are passed on unchanged.
        signature: the dims of arguments and results, such as `"(n),(n)->()"`; None for elements.

    Raises:
        ModelError: `pyfunc` is not callable.
    """
    if not callable(pyfunc):
        raise argument_error("pyfunc", pyfunc, "a function")
    return jnp.vectorize(pyfunc, excluded=excluded or set(), signature=signature)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
