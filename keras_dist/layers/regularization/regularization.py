"""Layers that act in training: `Dropout`, `SpatialDropout1D`, `AlphaDropout`, `GaussianNoise`, `GaussianDropout` ...

`ActivityRegularization` is here, too.
"""

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
from keras_dist.layers.layer import Layer
from keras_dist.layers.spatial_layer import SpatialLayer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.mixed_precision import DTypePolicy

_LOWEST = -1.7580993408473766
"""The limit of `selu` at -infinity: the product of its two constants."""


def check_rate_below_one(argument: str, value: float, layer: str) -> float:
    """Return `value` as a float, if it is a number from 0 to below 1."""
    return check_number(argument, value, 0, below=1, wrong="is not a fraction below 1", layer=layer, example=0.5)


class NoiseLayer(Layer):
    """The base of layers that add noise in training, and return their inputs otherwise. Subclasses define `add_noise`.

    Args:
        argument: the name of the argument for the strength, which becomes an attribute.
        strength: the strength of the noise; 0 for none.
        seed: seed of the random numbers; by default derived from the model's seed.
        **kwargs: see `Layer`.
    """

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
        """Return the inputs, in training with noise."""
        return self.add_noise(inputs) if training and self.seed_generator is not None else inputs

    def add_noise(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs with noise."""
        raise NotImplementedError(f"{type(self).__name__} does not define add_noise(self, inputs)")


class DropoutLayer(NoiseLayer):
    """The base of layers that drop inputs.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: the shape of the noise; dims of 1 are dropped together, None is the size of the input. By default
            the shape of the input.
        seed: seed of the random numbers; by default derived from the model's seed.
        **kwargs: see `Layer`.
    """

    def __init__(
        self, rate: float, noise_shape: Shape | None = None, seed: int | None = None, **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__("rate", rate, seed, **kwargs)
        self.noise_shape = _check_noise_shape(noise_shape, self.name)

    def _shape_for(self, inputs: jax.Array) -> tuple[int, ...]:
        """Return the shape of the noise for these inputs."""
        if self.noise_shape is None:
            return inputs.shape
        sizes = (*inputs.shape, *[1] * len(self.noise_shape))
        shape = tuple(size if dim is None else dim for dim, size in zip(self.noise_shape, sizes, strict=False))
        check_broadcasts("noise_shape", shape, inputs.shape, self.name)
        return (1,) * (inputs.ndim - len(shape)) + shape


class Dropout(DropoutLayer):
    """Set a fraction of the inputs to 0 in training, and scale the others so that the sum stays.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: the shape of the noise; dims of 1 are dropped together, None is the size of the input. By default
            the shape of the input.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: see `Layer`.

    Source: `keras.layers.Dropout`; with one seed, both drop the same.
    """

    def add_noise(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs, some of them 0."""
        return random.dropout(inputs, self.rate, self._shape_for(inputs), self.seed_generator)


class _SpatialDropout(SpatialLayer, Dropout):
    """`Dropout` of whole channels of inputs with `rank` spatial dims."""

    def __init__(self, rate: float, data_format: str | None, seed: int | None, **kwargs: Any) -> None:
        super().__init__(data_format, rate=rate, seed=seed, **kwargs)
        self.noise_shape = self._dims.for_all((1,) * self.rank, None)


class SpatialDropout1D(_SpatialDropout):
    """`Dropout` of whole channels of inputs (batch, steps, channels).

    Args:
        rate: the fraction, from 0 to 1.
        seed: seed of the random numbers; by default derived from the model's seed.
        name: see `Layer`.
        dtype: see `Layer`.
        **kwargs: see `Layer`.

    Source: `keras.layers.SpatialDropout1D`; https://arxiv.org/abs/1411.4280.
    """

    rank = 1

    def __init__(
        self,
        rate: float,
        seed: int | None = None,
        name: str | None = None,
        dtype: DTypeLike | DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, None, seed, name=name, dtype=dtype, **kwargs)


class SpatialDropout2D(_SpatialDropout):
    """`Dropout` of whole channels of inputs (batch, height, width, channels).

    Args:
        rate: the fraction, from 0 to 1.
        data_format: `"channels_last"`, the default, for inputs (batch, spatial dims, channels); or `"channels_first"`.
        seed: seed of the random numbers; by default derived from the model's seed.
        name: see `Layer`.
        dtype: see `Layer`.
        **kwargs: see `Layer`.

    Source: `keras.layers.SpatialDropout2D`; https://arxiv.org/abs/1411.4280.
    """

    rank = 2

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


class SpatialDropout3D(SpatialDropout2D):
    """`Dropout` of whole channels of inputs (batch, depth, height, width, channels); see `SpatialDropout2D`.

    Source: `keras.layers.SpatialDropout3D`; https://arxiv.org/abs/1411.4280.
    """

    rank = 3


class AlphaDropout(DropoutLayer):
    """Dropout for networks of `selu`: https://arxiv.org/abs/1706.02515.

    In training a fraction of the inputs is set to the limit of `selu(x)` for x to -infinity, and all are rescaled, so
    that mean and variance stay.

    Args:
        rate: the fraction, from 0 to below 1.
        noise_shape, seed, **kwargs: as in `Dropout`.

    Differs from Keras: a rate of 1 is refused at once; Keras divides by 0 when training begins.

    Source: `keras.layers.AlphaDropout`; https://arxiv.org/abs/1706.02515. With one seed, both drop the same.
    """

    check_strength = staticmethod(check_rate_below_one)

    def add_noise(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs, some of them the limit of `selu`, scaled."""
        kept = random.uniform(self._shape_for(inputs), seed=self.seed_generator) >= self.rate
        factor = ((1 - self.rate) * (1 + self.rate * _LOWEST**2)) ** -0.5
        return factor * jnp.where(kept, inputs, _LOWEST) - factor * _LOWEST * self.rate


class GaussianNoise(NoiseLayer):
    """Add normal noise with mean 0 in training.

    Args:
        stddev: of the noise, from 0 to 1.
        seed: seed of the random numbers; by default derived from the model's seed.
        **kwargs: see `Layer`.

    Source: `keras.layers.GaussianNoise`; with one seed, both add the same.
    """

    stddev: float

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__("stddev", stddev, seed, **kwargs)

    def add_noise(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs plus noise."""
        return inputs + random.normal(inputs.shape, 0.0, self.stddev, self.compute_dtype, self.seed_generator)


class GaussianDropout(NoiseLayer):
    """Multiply by normal noise with mean 1 and the variance of `Dropout`, `rate / (1 - rate)`, in training.

    Args:
        rate: from 0 to below 1.
        seed: seed of the random numbers; by default derived from the model's seed.
        **kwargs: see `Layer`.

    Differs from Keras: a rate of 1 is refused at once; Keras divides by 0 when training begins.

    Source: `keras.layers.GaussianDropout`; with one seed, both give the same.
    """

    check_strength = staticmethod(check_rate_below_one)

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__("rate", rate, seed, **kwargs)

    def add_noise(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs times noise."""
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
        """Return the inputs."""
        self.add_loss(self._penalty(inputs) / max(1, *inputs.shape[:1]))
        return inputs


def _check_noise_shape(value: Shape | None, layer: str) -> tuple[int | None, ...] | None:
    """Return `value` as a tuple, or None."""
    if value is None:
        return None
    dims = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (0,)
    if not all(dim is None or is_int(dim, 1) for dim in dims):
        expected = "a tuple of positive integers, and None for the size of the input; or None"
        raise argument_error("noise_shape", value, expected, layer=layer, example=(None, 1, None))
    return tuple(None if dim is None else int(dim) for dim in dims)
