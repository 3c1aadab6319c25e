"""Layers that act in training: dropout, noise and activity regularization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import random, regularizers
from keras_dist._support.arguments import argument_error, check_broadcasts, check_fraction, check_number, is_int
from keras_dist._support.types import DTypeLike, Shape
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.spatial_layer import SpatialLayer
from keras_dist.layers.base.weight_arguments import LayerArguments
from keras_dist.mixed_precision import DTypePolicy

__all__ = ["ActivityRegularization", "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D"]
__all__ += ["SpatialDropout2D", "SpatialDropout3D"]

_LOWEST = -1.7580993408473766
"""The limit of `selu` at -infinity."""


def check_rate_below_one(argument: str, value: float, layer: str) -> float:
    """Return `value` as a float if `0 <= value < 1`."""
    return check_number(argument, value, 0, below=1, layer=layer, example=0.5)


class NoiseLayer(Layer):
    """The base of layers that change their inputs by `_add_noise` in training; `argument` names the strength."""

    rate: float
    check_strength = staticmethod(check_fraction)

    def __init__(self, argument: str, strength: float, seed: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        strength = self.check_strength(argument, strength, self.name)
        setattr(self, argument, strength)
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed) if strength > 0 else None
        self.supports_masking = True

    def call(self, inputs: jax.Array, training: bool | None = False) -> jax.Array:
        return self._add_noise(inputs) if training and self.seed_generator is not None else inputs

    def _add_noise(self, inputs: jax.Array) -> jax.Array:
        raise NotImplementedError


class DropoutLayer(NoiseLayer):
    """The base of layers that drop inputs; for the arguments see `Dropout`."""

    def __init__(
        self, rate: float, noise_shape: Shape | None = None, seed: int | None = None, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__("rate", rate, seed, **kwargs)
        self.noise_shape = _check_noise_shape(noise_shape, self.name)

    def _shape_for(self, inputs: jax.Array) -> tuple[int, ...]:
        if self.noise_shape is None:
            return inputs.shape
        sizes = (*inputs.shape, *[1] * len(self.noise_shape))
        shape = tuple(size if dim is None else dim for dim, size in zip(self.noise_shape, sizes, strict=False))
        check_broadcasts("noise_shape", shape, inputs.shape, self.name)
        return (1,) * (inputs.ndim - len(shape)) + shape


class Dropout(DropoutLayer):
    """Set a fraction of the inputs to 0 in training, and scale the others by `1 / (1 - rate)`.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: the shape of the noise; dims of 1 are dropped together, None is the size of the input. By default
            the shape of the input.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: see `Layer`.

    Source: `keras.layers.Dropout`, which drops the same inputs for the same seed.
    """

    def _add_noise(self, inputs: jax.Array) -> jax.Array:
        return random.dropout(inputs, self.rate, self._shape_for(inputs), self.seed_generator)


class _SpatialDropout(SpatialLayer, Dropout):
    """`Dropout` of whole channels of inputs with `rank` spatial dims."""

    def __init__(self, rate: float, data_format: str | None, seed: int | None, **kwargs: Any) -> None:
        super().__init__(data_format, rate=rate, seed=seed, **kwargs)
        self.noise_shape = self._dims.per_dim((1,) * self.rank, None)


class SpatialDropout1D(_SpatialDropout, rank=1):
    """`Dropout` of whole channels of inputs (batch, steps, channels).

    Args:
        rate: fraction of channels to drop, from 0 to 1.
        seed, **kwargs: as in `Dropout`.
        name, dtype: see `Layer`.

    Source: `keras.layers.SpatialDropout1D`; https://arxiv.org/abs/1411.4280.
    """

    def __init__(
        self,
        rate: float,
        seed: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, None, seed, name=name, dtype=dtype, **kwargs)


class SpatialDropout2D(_SpatialDropout, rank=2):
    """`Dropout` of whole channels of inputs (batch, height, width, channels).

    Args:
        rate: fraction of channels to drop, from 0 to 1.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        seed, **kwargs: as in `Dropout`.
        name, dtype: see `Layer`.

    Source: `keras.layers.SpatialDropout2D`; https://arxiv.org/abs/1411.4280.
    """

    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, data_format, seed, name=name, dtype=dtype, **kwargs)


class SpatialDropout3D(SpatialDropout2D, rank=3):
    """`Dropout` of whole channels of inputs (batch, depth, height, width, channels); see `SpatialDropout2D`.

    Source: `keras.layers.SpatialDropout3D`; https://arxiv.org/abs/1411.4280.
    """


class AlphaDropout(DropoutLayer):
    """Dropout for networks with `selu` activations, which keeps mean and variance.

    In training a fraction of the inputs is set to the limit of `selu(x)` for x to -infinity, and all are rescaled.

    Args:
        rate: fraction of inputs to drop, at least 0 and below 1.
        noise_shape, seed, **kwargs: as in `Dropout`.

    Differs from Keras: a rate of 1 is refused; Keras would divide by 0.

    Source: `keras.layers.AlphaDropout`, which drops the same inputs for the same seed; https://arxiv.org/abs/1706.02515.
    """

    check_strength = staticmethod(check_rate_below_one)

    def _add_noise(self, inputs: jax.Array) -> jax.Array:
        kept = random.uniform(self._shape_for(inputs), seed=self.seed_generator) >= self.rate
        factor = ((1 - self.rate) * (1 + self.rate * _LOWEST**2)) ** -0.5
        return factor * jnp.where(kept, inputs, _LOWEST) - factor * _LOWEST * self.rate


class GaussianNoise(NoiseLayer):
    """Add normal noise with mean 0 in training.

    Args:
        stddev: standard deviation of the noise, from 0 to 1.
        seed, **kwargs: as in `Dropout`.

    Source: `keras.layers.GaussianNoise`, which adds the same noise for the same seed.
    """

    stddev: float

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__("stddev", stddev, seed, **kwargs)

    def _add_noise(self, inputs: jax.Array) -> jax.Array:
        return inputs + random.normal(inputs.shape, 0.0, self.stddev, self.compute_dtype, self.seed_generator)


class GaussianDropout(NoiseLayer):
    """Multiply by normal noise with mean 1 and the variance of `Dropout`, `rate / (1 - rate)`, in training.

    Args:
        rate: at least 0 and below 1.
        seed, **kwargs: as in `Dropout`.

    Differs from Keras: a rate of 1 is refused; Keras would divide by 0.

    Source: `keras.layers.GaussianDropout`, which gives the same results for the same seed.
    """

    check_strength = staticmethod(check_rate_below_one)

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__("rate", rate, seed, **kwargs)

    def _add_noise(self, inputs: jax.Array) -> jax.Array:
        deviation = math.sqrt(self.rate / (1 - self.rate))
        return inputs * random.normal(inputs.shape, 1.0, deviation, self.compute_dtype, self.seed_generator)


class ActivityRegularization(Layer):
    """Add `(l1 * sum(abs(inputs)) + l2 * sum(inputs**2)) / batch` to the loss, and return the inputs.

    Args:
        l1: 0 or more.
        l2: 0 or more.
        **kwargs: see `Layer`.
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.l1 = l1
        self.l2 = l2
        self._penalty = regularizers.L1L2(l1, l2)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        self.add_loss(self._penalty(inputs) / max(1, *inputs.shape[:1]))
        return inputs


def _check_noise_shape(value: Shape | None, layer: str) -> tuple[int | None, ...] | None:
    if value is None:
        return None
    dims = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (0,)
    if not all(dim is None or is_int(dim, 1) for dim in dims):
        expected = "a tuple of positive integers, and None for the size of the input; or None"
        raise argument_error("noise_shape", value, expected, layer=layer, example=(None, 1, None))
    return tuple(None if dim is None else int(dim) for dim in dims)
