"""Several arrays side by side, or multiplied as matrices: `Concatenate`, `Dot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_axes_exist, check_axis, is_int
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.layers.merging import check_batches, check_list, shapes_differ

_LARGEST_FACTOR = 1e7
"""What vectors that are almost 0 are multiplied by when they are normalized."""


class Concatenate(Layer):
    """A list of arrays, one behind the other.

    The output is masked where all values along its last dim are; an input without a mask is not masked.

    Args:
        axis: the dim along which; the others must be equal.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `axis` is not an integer.

    Source: `keras.layers.Concatenate`.
    """

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = check_axis("axis", axis, self.name)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """One array of several."""
        check_list(inputs, self.name)
        (axis,) = check_axes_exist("axis", (self.axis,), inputs[0].shape, self.name)
        if len({(x.ndim, *x.shape[:axis], *x.shape[axis + 1 :]) for x in inputs}) > 1:
            raise shapes_differ(inputs, f"equal dims but for dim {axis}", self.name)
        return jnp.concatenate(inputs, axis)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Where any value along the last dim is not masked; None when no input has a mask."""
        if previous_mask is None or all(mask is None for mask in previous_mask):
            return None
        kept = [
            jnp.ones(x.shape, bool)
            if mask is None
            else jnp.broadcast_to(mask if mask.ndim == x.ndim else mask[..., None], x.shape)
            for x, mask in zip(inputs, previous_mask, strict=True)
        ]
        return jnp.any(jnp.concatenate(kept, self.axis), axis=-1)


class Dot(Layer):
    """The product of two arrays, summed over one dim of each, for each example.

    Args:
        axes: the dim of both, or of each; the batch is dim 0 and cannot be one.
        normalize: whether both are divided by their norm along these dims before: gives the cosine.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `axes` are neither one nor two integers, or name the batch.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Dot(axes=(1, 2))([jnp.ones((2, 3, 5)), jnp.ones((2, 10, 3))]).shape
        (2, 5, 10)

    Source: `keras.layers.Dot`.
    """

    def __init__(self, axes: int | Sequence[int], normalize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        pair = tuple(axes) if isinstance(axes, list | tuple) else (axes, axes)
        if len(pair) != 2 or any(not is_int(axis) or axis == 0 for axis in pair):
            raise ModelError(
                f"`axes` of layer {self.name!r} are not a dim of each of two inputs",
                given=f"axes={shorten(axes)}",
                expected="an integer, or two of them, and not 0, which is the batch",
                fix="for example axes=-1; for inputs without a batch put one before: x[None]",
            )
        self.axes: tuple[Any, ...] = tuple(map(int, pair))
        self.normalize = normalize
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """The sums: the other dims of the first, then those of the second, and one of size 1 if there is none."""
        check_list(inputs, self.name, 2)
        check_batches(inputs, self.name)
        pairs = zip(self.axes, inputs, strict=True)
        first, second = (check_axes_exist("axes", (axis,), x.shape, self.name)[0] for axis, x in pairs)
        x, y = inputs
        if 0 in (first, second) or x.shape[first] != y.shape[second]:
            raise shapes_differ(inputs, f"one size in dims {first} and {second}, which are not the batch", self.name)
        if self.normalize:
            x, y = _normalized(x, first), _normalized(y, second)
        dtype = jnp.result_type(x, y)
        dims = (((first,), (second,)), ((0,), (0,)))
        products = jax.lax.dot_general(x.astype(dtype), y.astype(dtype), dims)
        return products if products.ndim > 1 else products[:, None]

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """None."""
        return None


def concatenate(inputs: Any, axis: int = -1, **kwargs: Any) -> Any:
    """`Concatenate(axis, **kwargs)(inputs)`.

    Source: `keras.layers.concatenate`.
    """
    return Concatenate(axis, **kwargs)(inputs)


def dot(inputs: Any, axes: int | Sequence[int] = -1, **kwargs: Any) -> Any:
    """`Dot(axes, **kwargs)(inputs)`.

    Source: `keras.layers.dot`.
    """
    return Dot(axes, **kwargs)(inputs)


def _normalized(x: Any, axis: int) -> Any:
    """`x` divided by its norm along `axis`."""
    factor = jax.lax.rsqrt(jnp.sum(jnp.square(x), axis, keepdims=True))
    return x * jnp.minimum(factor, _LARGEST_FACTOR)
