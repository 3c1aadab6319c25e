"""`rearrange`: dims in another order, split and merged, as a pattern of names says."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops.operation import as_array, names_in, operation

_GROUP = re.compile(r"\(([^()]*)\)|(\w+)")


@operation
def rearrange(tensor: ArrayLike, pattern: str, **axes_lengths: int) -> jax.Array:
    """Return `tensor` with its dims in another order, split or merged.

    Args:
        tensor: an array.
        pattern: names of its dims, `->`, names of those of the result, as in einops. Names in parentheses are the
            parts of one dim.
        **axes_lengths: the sizes of parts; of each dim that is split all but one.

    Raises:
        ModelError: the pattern does not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import ops
        >>> ops.rearrange(jnp.ones((2, 12, 3)), "b (rows columns) c -> b c rows columns", rows=4).shape
        (2, 3, 4, 3)
    """
    array = as_array(tensor)
    sides = [[(group or name).split() for group, name in _GROUP.findall(side)] for side in pattern.split("->")]
    names = [[name for group in side for name in group] for side in sides]
    fits = len(sides) == 2 and len(sides[0]) == array.ndim
    if not fits or sorted(names[0]) != sorted(names[1]) or len({*names[0]}) != len(names[0]):
        raise _misfit(array, pattern, axes_lengths)
    sizes: dict[str, Any] = {}
    for group, size in zip(sides[0], array.shape, strict=True):
        known = {name: axes_lengths[name] for name in group if name in axes_lengths}
        unknown = [name for name in group if name not in known]
        rest = size // max(prod(known.values()), 1)
        sizes |= known | dict.fromkeys(unknown, rest)
        if len(unknown) > 1 or prod(sizes[name] for name in group) != size:
            raise _misfit(array, pattern, axes_lengths)
    parts = jnp.reshape(array, [sizes[name] for name in names[0]])
    ordered = jnp.transpose(parts, [names[0].index(name) for name in names[1]])
    return jnp.reshape(ordered, [prod(sizes[name] for name in group) for group in sides[1]])


def _misfit(array: jax.Array, pattern: str, sizes: dict[str, int]) -> ModelError:
    summary = "rearrange: pattern and sizes must fit the dims, with the same names on both sides of `->`"
    fix = 'for example rearrange(x, "b (h1 h) c -> (b h1) h c", h1=2)'
    return ModelError(summary, given=f"{pattern!r} with {sizes} for an array of shape {array.shape}", fix=fix)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
