"""Zero padding and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error, check_sizes
from keras_dist.errors import ModelError
from keras_dist.layers.spatial_layer import SpatialLayer
from keras_dist.layers.weight_arguments import LayerArguments


class ZeroPadding(SpatialLayer):
    """The base of `ZeroPadding1D`, `ZeroPadding2D` and `ZeroPadding3D`: zeros before and after the inputs.

    Args:
        padding: number of zeros: an integer, one for each spatial dim, or a pair (before, after) for each.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        padding: int | Sequence[int | Sequence[int]] = 1,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.padding = _check_pairs("padding", padding, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        return jnp.pad(inputs, self._dims.for_all(self.padding, (0, 0)))


class Cropping(SpatialLayer):
    """The base of `Cropping1D`, `Cropping2D` and `Cropping3D`: inputs without their first and last steps.

    Args:
        cropping: number of steps to remove: an integer, one for each spatial dim, or a pair (before, after) for each.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        cropping: int | Sequence[int | Sequence[int]],
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.cropping = _check_pairs("cropping", cropping, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        sizes = [inputs.shape[axis] for axis in self.spatial_axes]
        pairs = zip(self.cropping, sizes, strict=True)
        kept = [slice(before, max(before, size - after)) for (before, after), size in pairs]
        return self.check_not_empty(inputs[self._dims.for_all(kept, slice(None))], inputs)


class ZeroPadding1D(ZeroPadding, rank=1):
    """Zeros before and after the inputs (batch, steps, channels). Arguments as in `ZeroPadding2D`."""


class ZeroPadding2D(ZeroPadding, rank=2):
    """Zeros before and after the inputs (batch, height, width, channels).

    Args:
        padding: number of zeros: an integer; one for each spatial dim; or for each a pair, before and after.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        **kwargs: see `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.ZeroPadding2D(((1, 0), (2, 2)))(jnp.ones((2, 28, 28, 1))).shape
        (2, 29, 32, 1)
    """


class ZeroPadding3D(ZeroPadding, rank=3):
    """Zeros before and after the inputs (batch, depth, height, width, channels). Arguments as in `ZeroPadding2D`."""


class Cropping1D(Cropping, rank=1):
    """Inputs (batch, steps, channels) without their first and last steps. There is no `data_format`.

    Arguments as in `Cropping2D`.
    """

    def __init__(self, cropping: int | Sequence[int] = 1, **kwargs: Any) -> None:
        super().__init__(cropping, **kwargs)


class Cropping2D(Cropping, rank=2):
    """Inputs (batch, height, width, channels) without their borders.

    Args:
        cropping: number of steps to remove: an integer; one for each spatial dim; or for each a pair, before and after.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        cropping: int | Sequence[int | Sequence[int]] = 0,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)


class Cropping3D(Cropping, rank=3):
    """Inputs (batch, depth, height, width, channels) without their borders. Arguments as in `Cropping2D`."""

    def __init__(
        self,
        cropping: int | Sequence[int | Sequence[int]] = 1,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)


def _check_pairs(
    argument: str, value: int | Sequence[int | Sequence[int]], rank: int, layer: str
) -> tuple[tuple[int, ...], ...]:
    """Return `value` as a pair of counts for each spatial dim."""
    each = value if isinstance(value, Sequence) and rank > 1 else (value,) * rank
    try:
        pairs = tuple(check_sizes(argument, count, 2, layer, least=0) for count in each)
    except ModelError:
        pairs = ()
    if len(pairs) != rank:
        example = ((1, 0),) * rank if rank > 1 else (1, 0)
        several = f"{rank} of them, or {rank} pairs (before, after)" if rank > 1 else "a pair (before, after)"
        expected = f"an integer of at least 0, or {several}"
        raise argument_error(argument, value, expected, layer=layer, example=example)
    return pairs
