"""Activation layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import activations
from keras_dist._support.arguments import (
    argument_error,
    check_axes,
    check_axes_exist,
    check_broadcasts,
    check_number,
    check_numbers,
    check_optional,
)
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import AlphaArguments, Identifier, LayerArguments

__all__ = ["ELU", "Activation", "LeakyReLU", "PReLU", "ReLU", "Softmax"]


class Activation(Layer):
    """Apply an activation function.

    Args:
        activation: a name or a function; None for none.
        **kwargs: see `Layer`.
    """

    def __init__(self, activation: Identifier, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.identify("activation", activations.get, activation)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        return self.activation(inputs)


class ReLU(Layer):
    """`min(x, max_value)` for `x >= threshold`, else `negative_slope * (x - threshold)`.

    Args:
        max_value: at least 0; None for no limit.
        negative_slope: at least 0.
        threshold: at least 0.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        limit = None if max_value == math.inf else max_value
        self.max_value = check_optional(check_number, "max_value", limit, 0, layer=self.name)
        self.negative_slope = check_number("negative_slope", negative_slope, 0, layer=self.name)
        self.threshold = check_number("threshold", threshold, 0, layer=self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        return activations.relu(inputs, self.negative_slope, self.max_value, self.threshold)


class LeakyReLU(Layer):
    """`x` for `x >= 0`, else `negative_slope * x`.

    Args:
        negative_slope: at least 0.
        **kwargs: see `Layer`.
    """

    def __init__(self, negative_slope: float = 0.3, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.negative_slope = check_number("negative_slope", negative_slope, 0, layer=self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        return activations.leaky_relu(inputs, self.negative_slope)


class PReLU(Layer):
    """`x` for `x >= 0`, else `alpha * x`, with a trainable `alpha` for each position.

    Args:
        shared_axes: the dims, counted with the batch, that share `alpha`; [1, 2] for one per channel of images.
        **kwargs: `alpha_initializer`, `alpha_regularizer`, `alpha_constraint` and `alpha_layout` of the weight `alpha`,
            whose shape is the input shape without the batch, with size 1 in shared dims; and the arguments of `Layer`.

    Source: `keras.layers.PReLU`; https://arxiv.org/abs/1502.01852.
    """

    weight_initializers: ClassVar = {"alpha": "Zeros"}

    def __init__(self, *, shared_axes: int | Sequence[int] | None = None, **kwargs: Unpack[AlphaArguments]) -> None:
        super().__init__(**kwargs)
        self.shared_axes = () if shared_axes is None else check_axes("shared_axes", shared_axes, self.name)
        if 0 in self.shared_axes:
            expected = "dims from 1 on, without the batch"
            raise argument_error("shared_axes", shared_axes, expected, layer=self.name, fix="leave 0 out")
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `alpha`: the input shape without the batch, with size 1 in shared dims."""
        shared = check_axes_exist("shared_axes", self.shared_axes, input_shape, self.name)
        own = {axis: size for axis, size in enumerate(input_shape) if axis not in (0, *shared)}
        self.alpha = self.add_weight([own.get(axis, 1) for axis in range(1, len(input_shape))], name="alpha")
        self.input_spec = InputSpec(ndim=len(input_shape), axes=own)

    def call(self, inputs: jax.Array) -> jax.Array:
        return jax.nn.relu(inputs) - self.alpha[...] * jax.nn.relu(-inputs)


class ELU(Layer):
    """`x` for `x >= 0`, else `alpha * (exp(x) - 1)`.

    Args:
        alpha: a number.
        **kwargs: see `Layer`.
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.alpha = check_numbers("alpha", alpha, self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        return activations.elu(inputs, self.alpha)


class Softmax(Layer):
    """`exp(x) / sum(exp(x))` along `axis`.

    Args:
        axis: an integer, or several.
        **kwargs: see `Layer`.
    """

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.axis = check_axes("axis", axis, self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Return the probabilities; 0 where the mask, which broadcasts to the inputs, is False or at most 0.5."""
        if mask is None:
            return activations.softmax(inputs, self.axis)
        check_broadcasts("mask", mask.shape, inputs.shape, self.name)
        kept = mask if mask.dtype == bool else mask > 0.5
        # not -inf: the sum of probabilities would be 0 where all are masked
        probabilities = activations.softmax(jnp.where(kept, inputs, jnp.finfo(inputs.dtype).min / 2), self.axis)
        return jnp.where(kept, probabilities, 0)
