"""Layers that change shapes: reshaping, padding, cropping and upsampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_option, check_size, check_sizes, is_int
from keras_dist._support.types import Shape
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.spatial_layer import SpatialLayer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.ops import image_transforms

__all__ = ["Cropping1D", "Cropping2D", "Cropping3D", "Flatten", "Permute", "RepeatVector", "Reshape", "UpSampling1D"]
__all__ += ["UpSampling2D", "UpSampling3D", "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D"]


class Flatten(Layer):
    """Flatten all dims but the batch.

    Args:
        data_format: `"channels_last"`, the default, for inputs (batch, ..., channels), or `"channels_first"` for inputs
            (batch, channels, ...); channels are moved to the end before flattening.
        **kwargs: see `Layer`.
    """

    def __init__(self, data_format: str | None = None, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(data_format, self.name)
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the values (batch, size) of inputs (batch, ...)."""
        if self.data_format == "channels_first" and inputs.ndim > 1:
            inputs = jnp.moveaxis(inputs, 1, -1)
        return inputs.reshape(inputs.shape[0], math.prod(inputs.shape[1:]))


class Reshape(Layer):
    """Reshape each example.

    Args:
        target_shape: the shape without the batch; one size may be -1 or None and follows from the others.
        **kwargs: see `Layer`.
    """

    def __init__(self, target_shape: Sequence[int | None], **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.target_shape = self._check_target_shape(target_shape)

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return the values (batch, *target_shape) of inputs (batch, ...)."""
        size, known = math.prod(inputs.shape[1:]), math.prod(dim for dim in self.target_shape if dim != -1)
        follows = size // max(known, 1)
        shape = tuple(follows if dim == -1 else dim for dim in self.target_shape)
        if math.prod(shape) != size:
            product = f"a divisor of {size}, beside -1" if -1 in self.target_shape else str(size)
            summary = f"the product of `target_shape` of layer {self.name!r} must be {product}"
            given = f"target_shape={self.target_shape} for an input of shape {tuple(inputs.shape)}"
            fix = "correct target_shape, which is without the batch, or the layers before"
            raise ModelError(summary, given=given, fix=fix)
        return inputs.reshape(inputs.shape[0], *shape)

    def _check_target_shape(self, value: Shape) -> tuple[int, ...]:
        dims = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (None, None)
        dims = tuple(-1 if dim is None else dim for dim in dims)
        if not all(is_int(dim, -1) for dim in dims) or dims.count(-1) > 1:
            expected = "a tuple of integers of at least 0, without the batch; one of them may be -1"
            raise argument_error("target_shape", value, expected, layer=self.name, example=(-1, 64))
        return tuple(int(dim) for dim in dims)


class Permute(Layer):
    """Permute the dims of each example.

    Args:
        dims: the new order of the dims, counted from 1, without the batch.
        **kwargs: see `Layer`.
    """

    def __init__(self, dims: Sequence[int], **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        found = tuple(dims) if isinstance(dims, Sequence | np.ndarray) else ()
        if not found or not all(number in found for number in range(1, len(found) + 1)):
            expected = "the dims of the input without the batch, counted from 1, in a new order"
            raise argument_error("dims", dims, expected, layer=self.name, example=(2, 1))
        self.dims = tuple(int(dim) for dim in found)
        self.input_spec = InputSpec(ndim=len(self.dims) + 1)

    def call(self, inputs: jax.Array) -> jax.Array:
        return jnp.transpose(inputs, (0, *self.dims))


class RepeatVector(Layer):
    """Repeat each vector: (batch, features) -> (batch, n, features).

    Args:
        n: number of repetitions.
        **kwargs: see `Layer`.
    """

    def __init__(self, n: int, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.n = check_size("n", n, self.name)
        self.input_spec = InputSpec(ndim=2)

    def call(self, inputs: jax.Array) -> jax.Array:
        batch, features = inputs.shape
        return jnp.broadcast_to(inputs[:, None], (batch, self.n, features))


class ZeroPadding(SpatialLayer):
    """The base of `ZeroPadding1D`, `ZeroPadding2D` and `ZeroPadding3D`: zeros before and after the inputs."""

    def __init__(
        self,
        padding: int | Sequence[int | Sequence[int]] = 1,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.padding = _check_pairs("padding", padding, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        return jnp.pad(inputs, self._dims.per_dim(self.padding, (0, 0)))


class Cropping(SpatialLayer):
    """The base of `Cropping1D`, `Cropping2D` and `Cropping3D`: inputs without their first and last steps."""

    def __init__(
        self,
        cropping: int | Sequence[int | Sequence[int]] = 1,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.cropping = _check_pairs("cropping", cropping, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        sizes = [inputs.shape[axis] for axis in self.spatial_axes]
        pairs = zip(self.cropping, sizes, strict=True)
        kept = [slice(before, max(before, size - after)) for (before, after), size in pairs]
        return self.check_not_empty(inputs[self._dims.per_dim(kept, slice(None))], inputs)


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
    """Inputs (batch, steps, channels) without their first and last steps. Arguments as in `Cropping2D`."""

    def __init__(self, cropping: int | Sequence[int] = 1, **kwargs: Any) -> None:
        super().__init__(cropping, **kwargs)


class Cropping2D(Cropping, rank=2):
    """Inputs (batch, height, width, channels) without their borders.

    Args:
        cropping: number of steps to remove: an integer; one for each spatial dim; or for each a pair, before and after.
        data_format, **kwargs: as in `ZeroPadding2D`.
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


def _check_pairs(
    argument: str, value: int | Sequence[int | Sequence[int]], rank: int, layer: str
) -> tuple[tuple[int, ...], ...]:
    each = value if isinstance(value, Sequence) and rank > 1 else (value,) * rank
    try:
        pairs = tuple(check_sizes(argument, count, 2, layer, least=0) for count in each)
    except ModelError:
        pairs = ()
    if len(pairs) != rank:
        example = ((1, 0),) * rank if rank > 1 else (1, 0)
        several = f"{rank} of them, or {rank} pairs (before, after)" if rank > 1 else "a pair (before, after)"
        raise argument_error(argument, value, f"an integer of at least 0, or {several}", layer=layer, example=example)
    return pairs


class UpSampling(SpatialLayer):
    """The base of the layers that repeat each step."""

    def __init__(
        self, size: int | Sequence[int] = 2, data_format: str | None = None, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.size = check_sizes("size", size, self.rank, self.name)

    def call(self, inputs: jax.Array) -> jax.Array:
        for axis, times in zip(self.spatial_axes, self.size, strict=True):
            inputs = jnp.repeat(inputs, times, axis=axis)
        return inputs


class UpSampling1D(UpSampling, rank=1):
    """Repeat each step: (batch, steps, channels) -> (batch, steps * size, channels); `size` is one integer.

    Arguments as in `UpSampling2D`.
    """

    def __init__(self, size: int = 2, **kwargs: Any) -> None:
        super().__init__(size, **kwargs)
        check_size("size", size, self.name)


class UpSampling2D(UpSampling, rank=2):
    """Upsample images: (batch, height, width, channels) -> (batch, height * size[0], width * size[1], channels).

    Args:
        size: factors of height and width, or one integer for both.
        data_format: `"channels_last"`, the default, or `"channels_first"` for inputs (batch, channels, height, width).
        interpolation: `"nearest"`, which repeats pixels, `"bilinear"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        size: int | Sequence[int] = 2,
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(size, data_format, **kwargs)
        self.interpolation = check_option(
            "interpolation", interpolation, image_transforms.RESIZE_INTERPOLATIONS, self.name
        )

    def call(self, inputs: jax.Array) -> jax.Array:
        if self.interpolation == "nearest":
            return super().call(inputs)
        height, width = (inputs.shape[axis] * times for axis, times in zip(self.spatial_axes, self.size, strict=True))
        return image_transforms.resize(inputs, (height, width), self.interpolation, data_format=self.data_format)


class UpSampling3D(UpSampling, rank=3):
    """Repeat each step of inputs (batch, depth, height, width, channels). Arguments as in `UpSampling2D`."""
