"""Shapes: what array there is with the same elements in other dims, in another order, or more often."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.numpy_arguments import Axes
from keras_dist.ops.operation import as_array, names_in, operation, unary

fliplr = unary("fliplr", jnp.fliplr, "The second dim, columns of a matrix, in reverse order.")
flipud = unary("flipud", jnp.flipud, "The first dim, rows of a matrix, in reverse order.")
ndim = unary("ndim", jnp.ndim, "The number of dims.")
ravel = unary("ravel", jnp.ravel, "The array, flattened to one dim.")
size = unary("size", jnp.size, "The number of elements.")


@operation
def broadcast_to(x: ArrayLike, shape: int | Sequence[int]) -> jax.Array:
    """Return an array of this shape, whose dims `x` has, or has with size 1.

    Args:
        x: an array.
        shape: of the result.
    """
    return jnp.broadcast_to(as_array(x), arguments.sizes(shape, "broadcast_to"))


@operation
def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> jax.Array:
    """Return the array with further dims of size 1.

    Args:
        x: an array.
        axis: where the dims are in the result.
    """
    return jnp.expand_dims(as_array(x), axis)


@operation
def flip(x: ArrayLike, axis: Axes = None) -> jax.Array:
    """Return the elements in reverse order.

    Args:
        x: an array.
        axis: dims along which it goes; None for all.
    """
    return jnp.flip(as_array(x), arguments.axes(axis))


@operation
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> jax.Array:
    """Return the array with some dims at other places; the others stay in order.

    Args:
        x: an array.
        source: the dims.
        destination: where each is in the result.
    """
    return jnp.moveaxis(as_array(x), source, destination)


@operation
def pad(
    x: ArrayLike,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    constant_values: ArrayLike | None = None,
) -> jax.Array:
    """Return the array with further elements before and after.

    Args:
        x: an array.
        pad_width: `(before, after)` for each dim; one pair or number for all.
        mode: what the elements are: "constant", "edge", "reflect", "symmetric", "wrap" and others of `jax.numpy.pad`.
        constant_values: the number for mode "constant"; None for 0.

    Raises:
        ModelError: a number is given for another mode.
    """
    if constant_values is None:
        return jnp.pad(as_array(x), pad_width, mode)
    if mode != "constant":
        raise argument_error("constant_values", constant_values, f"None for mode {mode!r}")
    return jnp.pad(as_array(x), pad_width, mode, constant_values=constant_values)


@operation
def repeat(x: ArrayLike, repeats: ArrayLike | Sequence[int], axis: int | None = None) -> jax.Array:
    """Return each element, or slice, several times in a row.

    Args:
        x: an array.
        repeats: how often; a number for all, or one for each.
        axis: the dim along which it goes; None to flatten the array first.
    """
    return jnp.repeat(as_array(x), arguments.static(repeats), axis)


@operation
def reshape(x: ArrayLike, newshape: int | Sequence[int]) -> jax.Array:
    """Return the elements in another shape.

    Args:
        x: an array.
        newshape: the shape; one dim may be -1, which is as large as the others leave it.

    Raises:
        ModelError: a size is below -1, or not known; or there is more than one -1.
    """
    newshape = arguments.sizes(newshape, "reshape")
    sizes = [size for size in np.atleast_1d(newshape) if size < 0] if _is_known(newshape) else []
    if sizes not in ([], [-1]):
        raise argument_error("newshape", newshape, "sizes from 0 on, and at most one -1")
    return jnp.reshape(as_array(x), newshape)  # pyright: ignore[reportArgumentType]


@operation
def roll(x: ArrayLike, shift: ArrayLike | Sequence[int], axis: Axes = None) -> jax.Array:
    """Return the elements moved towards larger indices; those beyond the end come first.

    Args:
        x: an array.
        shift: by how much; a number for all dims, or one for each.
        axis: the dims that are rolled; None to roll the flattened array, which then gets its shape back.
    """
    return jnp.roll(as_array(x), arguments.static(shift), arguments.axes(axis))


@operation
def rot90(array: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> jax.Array:
    """Return the array turned by right angles, from the first of two dims towards the second.

    Args:
        array: an array of two dims or more.
        k: how many times.
        axes: the two dims.

    Raises:
        ModelError: there are fewer dims, or these are not two different ones.
    """
    array = as_array(array)
    if array.ndim < 2:
        raise argument_error("array", array, "an array of two dims or more")
    if len(axes) != 2 or axes[0] == axes[1]:
        raise argument_error("axes", axes, "a tuple of two different dims", example=(0, 1))
    return jnp.rot90(array, k, (axes[0], axes[1]))


@operation
def squeeze(x: ArrayLike, axis: Axes = None) -> jax.Array:
    """Return the array without dims of size 1.

    Args:
        x: an array.
        axis: the dims; None for all that have size 1.
    """
    return jnp.squeeze(as_array(x), arguments.axes(axis))


@operation
def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> jax.Array:
    """Return the array with two dims exchanged.

    Args:
        x: an array.
        axis1: one.
        axis2: the other.
    """
    return jnp.swapaxes(as_array(x), axis1, axis2)


@operation
def tile(x: ArrayLike, repeats: int | Sequence[int]) -> jax.Array:
    """Return the array several times side by side.

    Args:
        x: an array.
        repeats: how often along each dim; with more dims than `x`, those are put before its own.
    """
    return jnp.tile(as_array(x), arguments.sizes(repeats, "tile"))


@operation
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> jax.Array:
    """Return the array with its dims in another order.

    Args:
        x: an array.
        axes: the dims in this order; None for the reverse.
    """
    return jnp.transpose(as_array(x), axes)


@operation
def view(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Return the bits of the elements as those of another element type.

    Args:
        x: an array.
        dtype: the element type; if it has another size, the last dim changes. None for that of `x`.
    """
    return as_array(x).view(arguments.element_type(dtype))


def _is_known(shape: Any) -> bool:
    return all(isinstance(size, int | np.integer) for size in (shape if isinstance(shape, list | tuple) else [shape]))


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
