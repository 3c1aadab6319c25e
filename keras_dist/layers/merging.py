"""One array of several, value by value: `Add`, `Subtract`, `Multiply`, `Average`, `Maximum`, `Minimum`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer


class Merge(Layer):
    """The base of layers that make one array of a list of arrays, value by value.

    Arrays with fewer dims get dims of size 1 behind the batch; then dims of size 1 fit any size. The output is masked
    where every input is masked; when an input has no mask, it has none.

    Args:
        **kwargs: as of `Layer`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """One array of several, of one batch size."""
        check_list(inputs, self.name)
        check_batches(inputs, self.name)
        rank = max(x.ndim for x in inputs)
        arrays, masks = _same_rank(inputs, rank), _same_rank(mask or [None] * len(inputs), rank - 1)
        try:
            jnp.broadcast_shapes(*(x.shape for x in arrays))
        except ValueError:
            raise shapes_differ(inputs, "equal dims, or some of size 1", self.name) from None
        return self.merge(arrays, masks)

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """One array of several of one rank.

        Args:
            inputs: arrays.
            masks: of each, without the last dim, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define merge(self, inputs, masks)")

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Where any input is not masked; None when one has no mask."""
        masks = previous_mask if isinstance(previous_mask, list | tuple) else [previous_mask]
        if any(mask is None for mask in masks):
            return None
        return functools.reduce(jnp.logical_or, _same_rank(masks, max(mask.ndim for mask in masks)))


class Add(Merge):
    """The sum of a list of arrays.

    Args:
        **kwargs: as of `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.Add()([jnp.ones((2, 3)), jnp.ones((2, 3))]).shape
        (2, 3)

    Source: `keras.layers.Add`.
    """

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """Their sum."""
        return functools.reduce(operator.add, inputs)


class Subtract(Merge):
    """The first of two arrays minus the second.

    Args:
        **kwargs: as of `Layer`.

    Source: `keras.layers.Subtract`.
    """

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """The first minus the second."""
        check_list(inputs, self.name, 2)
        return inputs[0] - inputs[1]


class Multiply(Merge):
    """The product of a list of arrays. Masked values count as 1; where all are masked, the output is 0.

    Args:
        **kwargs: as of `Layer`.

    Source: `keras.layers.Multiply`.
    """

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """Their product."""
        factors = [
            x if mask is None else jnp.where(mask[..., None], x, 1) for x, mask in zip(inputs, masks, strict=True)
        ]
        product = functools.reduce(operator.mul, factors)
        kept = self.compute_mask(inputs, masks)
        return product if kept is None else jnp.where(kept[..., None], product, 0)


class Average(Merge):
    """The mean of a list of arrays.

    Args:
        **kwargs: as of `Layer`.

    Source: `keras.layers.Average`.
    """

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """Their mean."""
        return functools.reduce(operator.add, inputs) / len(inputs)


class Maximum(Merge):
    """The largest of each value of a list of arrays. Masked values do not count, unless all are masked.

    Args:
        **kwargs: as of `Layer`.

    Source: `keras.layers.Maximum`.
    """

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """Their maximum."""
        return _extreme(jnp.maximum, inputs, masks)


class Minimum(Merge):
    """The smallest of each value of a list of arrays. Masked values do not count, unless all are masked.

    Args:
        **kwargs: as of `Layer`.

    Source: `keras.layers.Minimum`.
    """

    def merge(self, inputs: list[Any], masks: list[Any]) -> Any:
        """Their minimum."""
        return _extreme(jnp.minimum, inputs, masks)


def add(inputs: Any, **kwargs: Any) -> Any:
    """`Add(**kwargs)(inputs)`.

    Source: `keras.layers.add`.
    """
    return Add(**kwargs)(inputs)


def subtract(inputs: Any, **kwargs: Any) -> Any:
    """`Subtract(**kwargs)(inputs)`.

    Source: `keras.layers.subtract`.
    """
    return Subtract(**kwargs)(inputs)


def multiply(inputs: Any, **kwargs: Any) -> Any:
    """`Multiply(**kwargs)(inputs)`.

    Source: `keras.layers.multiply`.
    """
    return Multiply(**kwargs)(inputs)


def average(inputs: Any, **kwargs: Any) -> Any:
    """`Average(**kwargs)(inputs)`.

    Source: `keras.layers.average`.
    """
    return Average(**kwargs)(inputs)


def maximum(inputs: Any, **kwargs: Any) -> Any:
    """`Maximum(**kwargs)(inputs)`.

    Source: `keras.layers.maximum`.
    """
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Any, **kwargs: Any) -> Any:
    """`Minimum(**kwargs)(inputs)`.

    Source: `keras.layers.minimum`.
    """
    return Minimum(**kwargs)(inputs)


def check_list(inputs: Any, layer: str, count: int | None = None) -> None:
    """Check that the inputs of a layer are a list of arrays, of `count` if it is given.

    Raises:
        ModelError: they are not.
    """
    several = isinstance(inputs, list | tuple)
    if not several or not inputs or (count is not None and len(inputs) != count):
        raise ModelError(
            f"layer {layer!r} takes a list of arrays" if count is None else f"layer {layer!r} takes {count} arrays",
            given=f"a list of {len(inputs)}" if several else f"one input: {shorten(inputs)}",
            expected=f"a list of {'at least 1' if count is None else count}",
            fix="pass them as one list: layer([a, b])",
        )


def check_batches(inputs: Sequence[Any], layer: str) -> None:
    """Check that arrays have one batch size.

    Raises:
        ModelError: they do not.
    """
    if len({x.shape[:1] for x in inputs}) > 1:
        raise shapes_differ(inputs, "one batch size: that of dim 0", layer)


def shapes_differ(inputs: Sequence[Any], expected: str, layer: str) -> ModelError:
    """The error for inputs whose shapes do not fit together."""
    return ModelError(
        f"the inputs of layer {layer!r} do not fit together",
        given=f"shapes {', '.join(str(tuple(x.shape)) for x in inputs)}",
        expected=expected,
        fix="change the layers before, or put Reshape, Permute or a padding layer between",
    )


def _same_rank(arrays: Sequence[Any], rank: int) -> list[Any]:
    """The arrays, those with fewer dims with some of size 1 behind the batch; None stays None."""
    return [x if x is None else jnp.expand_dims(x, tuple(range(1, 1 + rank - x.ndim))) for x in arrays]


def _extreme(choose: Callable[[Any, Any], Any], inputs: list[Any], masks: list[Any]) -> Any:
    """The one that `choose` prefers of those that are not masked."""
    output, kept = inputs[0], masks[0]
    for x, mask in zip(inputs[1:], masks[1:], strict=True):
        if mask is not None:
            x = jnp.where(mask[..., None], x, output)
        if kept is not None:
            output = jnp.where(kept[..., None], output, x)
        kept = None if kept is None or mask is None else kept | mask
        output = choose(output, x)
    return output
