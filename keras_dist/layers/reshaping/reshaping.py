"""Layers that change the shape: `Flatten`, `Reshape`, `Permute`, `RepeatVector`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_size, is_int
from keras_dist._support.types import Shape
from keras_dist.config.settings import check_data_format
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import LayerArguments


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

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments with the chosen format, which need not be the default of another process."""
        arguments = super()._config_arguments()
        return arguments | ({"data_format": self.data_format} if "data_format" in arguments else {})


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

    Example:
        >>> from keras_dist import layers
        >>> layers.Permute((2, 1))(layers.Input((10, 64))).shape
        (None, 64, 10)
    """

    def __init__(self, dims: Sequence[int], **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        found = tuple(dims) if isinstance(dims, Sequence | np.ndarray) else ()
        if not found or not all(number in found for number in range(1, len(found) + 1)):
            summary = f"`dims` of layer {self.name!r} are not an order of dims"
            expected = "the numbers from 1 on, each once; the batch is not among them"
            raise ModelError(summary, given=f"dims={shorten(dims)}", expected=expected, fix="for example dims=(2, 1)")
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
