"""One array of several, and several of one."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import ArrayLike
from keras_dist.ops import numpy_arguments as arguments
from keras_dist.ops.operation import as_array, dims_of, names_in, operation


@operation
def append(x1: ArrayLike, x2: ArrayLike, axis: int | None = None) -> jax.Array:
    """Return two arrays, joined along a dim.

    Args:
        x1: the first.
        x2: the second.
        axis: the dim along which they are joined; None to flatten them first.
    """
    return jnp.append(as_array(x1), as_array(x2), axis)


@operation
def concatenate(xs: Sequence[ArrayLike], axis: int | None = 0) -> jax.Array:
    """Return arrays, joined along a dim.

    Args:
        xs: the arrays, which differ in no other dim.
        axis: the dim along which they are joined; None to flatten them first.
    """
    return jnp.concatenate(_arrays(xs), axis)


@operation
def stack(x: Sequence[ArrayLike], axis: int = 0) -> jax.Array:
    """Return arrays of one shape along a new dim.

    Args:
        x: the arrays.
        axis: where the new dim is in the result.
    """
    return jnp.stack(_arrays(x), axis)


@operation
def hstack(xs: Sequence[ArrayLike]) -> jax.Array:
    """Return arrays, joined along the second dim; those of one dim along that."""
    return jnp.hstack(_arrays(xs))


@operation
def vstack(xs: Sequence[ArrayLike]) -> jax.Array:
    """Return arrays, joined along the first dim; those of one dim as the rows of a matrix."""
    return jnp.vstack(_arrays(xs))


@operation
def dstack(xs: Sequence[ArrayLike]) -> jax.Array:
    """Return arrays, joined along the third dim, which is added where it is missing."""
    return jnp.dstack(_arrays(xs))


@operation
def split(x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[jax.Array]:
    """Return the parts of an array.

    Args:
        x: an array.
        indices_or_sections: the number of equal parts; or the indices at which all but the first begin.
        axis: the dim that is divided.

    Raises:
        ModelError: there is no such dim.
    """
    array = as_array(x)
    (dim,) = dims_of(array, axis)
    return jnp.split(array, arguments.static(indices_or_sections), dim)


@operation
def array_split(x: ArrayLike, indices_or_sections: int, axis: int = 0) -> list[jax.Array]:
    """Return the parts of an array, of which the first ones may be larger by one.

    Args:
        x: an array.
        indices_or_sections: the number of parts.
        axis: the dim that is divided.

    Raises:
        ModelError: the number is none, or there is no such dim.
    """
    if not is_int(indices_or_sections, 1):
        raise argument_error("indices_or_sections", indices_or_sections, "an integer from 1 on", example=2)
    array = as_array(x)
    (dim,) = dims_of(array, axis)
    return jnp.array_split(array, indices_or_sections, dim)


@operation
def hsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[jax.Array]:
    """Return the parts of an array along the second dim, of a row along its only one; see `split`."""
    return jnp.hsplit(as_array(x), arguments.static(indices_or_sections))


@operation
def vsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[jax.Array]:
    """Return the parts of an array along the first dim; see `split`."""
    return jnp.vsplit(as_array(x), arguments.static(indices_or_sections))


@operation
def dsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[jax.Array]:
    """Return the parts of an array along the third dim; see `split`."""
    return jnp.dsplit(as_array(x), arguments.static(indices_or_sections))


def _arrays(xs: Sequence[ArrayLike]) -> list[jax.Array]:
    return [as_array(x) for x in xs]


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
