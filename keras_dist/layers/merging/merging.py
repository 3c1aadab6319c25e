"""Layers that merge several arrays into one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_axes_exist, check_axis, is_int
from keras_dist._support.array_operators import value_of
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.ops.normalization import divided_by_norm

__all__ = ["Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract", "add", "average"]
__all__ += ["concatenate", "dot", "maximum", "minimum", "multiply", "subtract"]

_LARGEST_FACTOR = 1e7
"""Limit of the factor by which `Dot` normalizes vectors."""


class Merge(Layer):
    """The base of layers that merge a list of arrays element-wise; for the arguments see `Layer`.

    Arrays with fewer dims get dims of size 1 after the batch, then they are broadcast. The output is masked where all
    inputs are masked; it has no mask if an input has none.
    """

    supports_masking = True

    def call(self, inputs: Sequence[jax.Array], mask: Sequence[jax.Array | None] | None = None) -> jax.Array:
        _check_list(inputs, self.name)
        _check_batches(inputs, self.name)
        rank = max(x.ndim for x in inputs)
        arrays, masks = _same_rank(inputs, rank), _same_rank(mask or [None] * len(inputs), rank - 1)
        try:
            jnp.broadcast_shapes(*(x.shape for x in arrays))
        except ValueError:
            raise _shapes_differ(inputs, "equal dims, or some of size 1", self.name) from None
        return self._merge(arrays, masks)

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        """Merge arrays of one rank, given a mask without the last dim, or None, for each."""
        raise NotImplementedError(f"{type(self).__name__} does not define _merge(self, inputs, masks)")

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return where any input is not masked; None if an input has no mask."""
        masks = _check_masks(inputs, mask, self.name)
        if any(mask is None for mask in masks):
            return None
        return functools.reduce(jnp.logical_or, _same_rank(masks, max(mask.ndim for mask in masks)))


class Add(Merge):
    """The sum of a list of arrays."""

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        return functools.reduce(operator.add, inputs)


class Subtract(Merge):
    """The first of two arrays minus the second."""

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        _check_list(inputs, self.name, 2)
        return inputs[0] - inputs[1]


class Multiply(Merge):
    """The product of a list of arrays. Masked values are ignored; where all are masked, the output is 0."""

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        factors = [
            x if mask is None else jnp.where(mask[..., None], x, 1) for x, mask in zip(inputs, masks, strict=True)
        ]
        product = functools.reduce(operator.mul, factors)
        kept = self.compute_mask(inputs, masks)
        return product if kept is None else jnp.where(kept[..., None], product, 0)


class Average(Merge):
    """The mean of a list of arrays."""

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        return functools.reduce(operator.add, inputs) / len(inputs)


class Maximum(Merge):
    """The element-wise maximum of a list of arrays. Masked values are ignored unless all are masked."""

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        return _extreme(jnp.maximum, inputs, masks)


class Minimum(Merge):
    """The element-wise minimum of a list of arrays. Masked values are ignored unless all are masked."""

    def _merge(self, inputs: list[jax.Array], masks: list[jax.Array | None]) -> jax.Array:
        return _extreme(jnp.minimum, inputs, masks)


class Concatenate(Layer):
    """Concatenate a list of arrays.

    The output is masked where all values along its last dim are masked; an input without a mask is not masked.

    Args:
        axis: the dim along which they are concatenated; the others must be equal.
        **kwargs: see `Layer`.
    """

    def __init__(self, axis: int = -1, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.axis = check_axis("axis", axis, self.name)
        self.supports_masking = True

    def call(self, inputs: Sequence[jax.Array]) -> jax.Array:
        _check_list(inputs, self.name)
        (axis,) = check_axes_exist("axis", (self.axis,), inputs[0].shape, self.name)
        if len({(x.ndim, *x.shape[:axis], *x.shape[axis + 1 :]) for x in inputs}) > 1:
            raise _shapes_differ(inputs, f"equal dims, except dim {axis}", self.name)
        return jnp.concatenate(inputs, axis)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return where any value along the last dim is not masked; None if no input has a mask."""
        masks = _check_masks(inputs, mask, self.name)
        if all(mask is None for mask in masks):
            return None
        kept = [
            jnp.ones(x.shape, bool)
            if mask is None
            else jnp.asarray(value_of(mask))
            if mask.shape[1:] == x.shape[1:]
            else jnp.broadcast_to(mask if mask.ndim == x.ndim else mask[..., None], x.shape)
            for x, mask in zip(inputs, masks, strict=True)
        ]
        return jnp.any(jnp.concatenate(kept, self.axis), axis=-1)


class Dot(Layer):
    """The dot product of two arrays over one dim of each, for each example.

    Args:
        axes: the dim of both arrays, or a pair; must not be 0, the batch.
        normalize: whether to divide both by their norms along these dims, which gives cosine similarities.
        **kwargs: see `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Dot(axes=(1, 2))([jnp.ones((2, 3, 5)), jnp.ones((2, 10, 3))]).shape
        (2, 5, 10)
    """

    def __init__(self, axes: int | Sequence[int], normalize: bool = False, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        pair: tuple[Any, ...] = tuple(axes) if isinstance(axes, list | tuple) else (axes, axes)
        if len(pair) != 2 or any(not is_int(axis) or axis == 0 for axis in pair):
            given = f"axes={shorten(axes)}"
            fix = "for example axes=-1; 0 is the batch: put one before inputs without it, x[None]"
            raise ModelError(f"`axes` of layer {self.name!r} must be a dim of each of two inputs", given=given, fix=fix)
        self.axes = tuple(map(int, pair))
        self.normalize = normalize
        self.supports_masking = True

    def call(self, inputs: Sequence[jax.Array]) -> jax.Array:
        """Return the products (batch, other dims of the first input, other dims of the second), or (batch, 1)."""
        _check_list(inputs, self.name, 2)
        _check_batches(inputs, self.name)
        pairs = zip(self.axes, inputs, strict=True)
        first, second = (check_axes_exist("axes", (axis,), x.shape, self.name)[0] for axis, x in pairs)
        x, y = inputs
        if 0 in (first, second) or x.shape[first] != y.shape[second]:
            raise _shapes_differ(inputs, f"one size in dims {first} and {second}, which are not the batch", self.name)
        if self.normalize:
            x, y = (divided_by_norm(array, dim, _LARGEST_FACTOR) for array, dim in ((x, first), (y, second)))
        dtype = jnp.result_type(x, y)
        dims = (((first,), (second,)), ((0,), (0,)))
        products = jax.lax.dot_general(x.astype(dtype), y.astype(dtype), dims)
        return products if products.ndim > 1 else products[:, None]

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return None."""
        return None


def _function(cls: type[Layer]) -> Callable[..., jax.Array]:

    def merge(inputs: Sequence[jax.Array], **kwargs: Any) -> jax.Array:
        return cls(**kwargs)(inputs)

    merge.__name__ = merge.__qualname__ = cls.__name__.lower()
    merge.__doc__ = f"`{cls.__name__}(**kwargs)(inputs)`."
    return merge


add = _function(Add)
subtract = _function(Subtract)
multiply = _function(Multiply)
average = _function(Average)
maximum = _function(Maximum)
minimum = _function(Minimum)


def concatenate(inputs: Sequence[jax.Array], axis: int = -1, **kwargs: Any) -> jax.Array:
    """`Concatenate(axis, **kwargs)(inputs)`."""
    return Concatenate(axis, **kwargs)(inputs)


def dot(inputs: Sequence[jax.Array], axes: int | Sequence[int] = -1, **kwargs: Any) -> jax.Array:
    """`Dot(axes, **kwargs)(inputs)`."""
    return Dot(axes, **kwargs)(inputs)


def _check_list(inputs: object, layer: str, count: int | None = None) -> None:
    several = isinstance(inputs, list | tuple)
    if not several or not inputs or (count is not None and len(inputs) != count):
        summary = f"layer {layer!r} takes {'a list of' if count is None else count} arrays"
        given = f"a list of {len(inputs)}" if several else f"one input: {shorten(inputs)}"
        raise ModelError(summary, given=given, fix="pass them as one list: layer([a, b])")


def _check_masks(inputs: object, masks: object, layer: str) -> Sequence[Any]:
    """Return a list with the mask of each input, or None."""
    if isinstance(inputs, list | tuple) and masks is None:
        return [None] * len(inputs)
    if isinstance(inputs, list | tuple) and isinstance(masks, list | tuple) and len(inputs) == len(masks):
        return masks
    given = f"inputs={shorten(inputs)}, masks={shorten(masks)}"
    fix = "layer.compute_mask([a, b], [mask_of_a, None])"
    raise ModelError(f"layer {layer!r} must get a list of inputs, and a mask or None for each", given=given, fix=fix)


def _check_batches(inputs: Sequence[jax.Array], layer: str) -> None:
    if len({x.shape[:1] for x in inputs}) > 1:
        raise _shapes_differ(inputs, "one batch size, in dim 0", layer)


def _shapes_differ(inputs: Sequence[jax.Array], expected: str, layer: str) -> ModelError:
    given = f"shapes {', '.join(str(tuple(x.shape)) for x in inputs)}"
    fix = "change the layers before, or put Reshape, Permute or a padding layer between"
    return ModelError(f"the inputs of layer {layer!r} do not fit together", given=given, expected=expected, fix=fix)


def _same_rank(arrays: Sequence[Any], rank: int) -> list[Any]:
    """Insert dims of size 1 after the batch, so that all arrays have the same rank; None stays None."""
    return [x if x is None else jnp.expand_dims(x, tuple(range(1, 1 + rank - x.ndim))) for x in arrays]


def _extreme(
    choose: Callable[[jax.Array, jax.Array], jax.Array], inputs: list[jax.Array], masks: list[jax.Array | None]
) -> jax.Array:
    """Reduce the values that are not masked by `choose`."""
    output, kept = inputs[0], masks[0]
    for x, mask in zip(inputs[1:], masks[1:], strict=True):
        if mask is not None:
            x = jnp.where(mask[..., None], x, output)
        if kept is not None:
            output = jnp.where(kept[..., None], output, x)
        kept = None if kept is None or mask is None else kept | mask
        output = choose(output, x)
    return output
