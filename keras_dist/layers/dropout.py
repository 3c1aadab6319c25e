"""Layers that drop values in training: `Dropout`, `SpatialDropout1D/2D/3D`, `AlphaDropout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from keras_dist import random
from keras_dist._arguments import argument_error, check_broadcasts, check_fraction, check_number, check_option, is_int
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer


class Dropout(Layer):
    """In training a fraction of the inputs becomes 0, and the others grow so that the sum stays.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: the shape in which is drawn; dims of 1 are dropped together, None is the size of the input. By
            default that of the input.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `rate` is not a fraction, or `noise_shape` is no shape.

    Source: `keras.layers.Dropout`; with one seed, both drop the same.
    """

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_fraction("rate", rate, self.name)
        self.seed = seed
        self.noise_shape = _check_noise_shape(noise_shape, self.name)
        if self.rate > 0:
            self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """The inputs, in training with noise."""
        if not training or self.rate == 0:
            return inputs
        shape = _noise_shape_for(inputs, self.noise_shape, self.name)
        return random.dropout(inputs, self.rate, shape, self.seed_generator)


class SpatialDropout1D(Dropout):
    """`Dropout` of whole channels.

    Args:
        rate: the fraction, from 0 to 1.
        seed: fixes the numbers; by default they follow from the model's seed.
        name: as of `Layer`.
        dtype: as of `Layer`.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `rate` is not a fraction.

    Source: `keras.layers.SpatialDropout1D`; https://arxiv.org/abs/1411.4280.
    """

    def __init__(
        self, rate: float, seed: int | None = None, name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(rate, (None, 1, None), seed, name=name, dtype=dtype, **kwargs)
        self.input_spec = InputSpec(ndim=3)


class _SpatialDropout(Dropout):
    """`Dropout` of whole channels of inputs with `rank` spatial dims."""

    rank: int

    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, seed=seed, name=name, dtype=dtype, **kwargs)
        formats = ("channels_last", "channels_first")
        self.data_format = check_option("data_format", data_format or formats[0], formats, self.name)
        together = (1,) * self.rank
        self.noise_shape = (None, *together, None) if self.data_format == formats[0] else (None, None, *together)
        self.input_spec = InputSpec(ndim=self.rank + 2)


class SpatialDropout2D(_SpatialDropout):
    """`Dropout` of whole channels of images.

    Args:
        rate: the fraction, from 0 to 1.
        data_format: `"channels_last"` for inputs (batch, rows, columns, channels), the default, or `"channels_first"`
            for inputs (batch, channels, rows, columns).
        seed: fixes the numbers; by default they follow from the model's seed.
        name: as of `Layer`.
        dtype: as of `Layer`.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `rate` is not a fraction, or there is no such `data_format`.

    Source: `keras.layers.SpatialDropout2D`; https://arxiv.org/abs/1411.4280.
    """

    rank = 2


class SpatialDropout3D(_SpatialDropout):
    """`Dropout` of whole channels of volumes, (batch, three spatial dims, channels).

    For the arguments see `SpatialDropout2D`.

    Source: `keras.layers.SpatialDropout3D`; https://arxiv.org/abs/1411.4280.
    """

    rank = 3


class AlphaDropout(Layer):
    """In training a fraction of the inputs becomes what `selu` gives for -infinity, so that mean and variance stay.

    Args:
        rate: the fraction, from 0 to below 1.
        noise_shape: the shape in which is drawn; dims of 1 are dropped together, None is the size of the input. By
            default that of the input.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `rate` is not a fraction below 1, or `noise_shape` is no shape.

    Differs from Keras: a rate of 1 is refused at once; Keras divides by 0 when training begins.

    Source: `keras.layers.AlphaDropout`; https://arxiv.org/abs/1706.02515. With one seed, both drop the same.
    """

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate_below_one("rate", rate, self.name)
        self.seed = seed
        self.noise_shape = _check_noise_shape(noise_shape, self.name)
        if self.rate > 0:
            self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """The inputs, in training with noise."""
        if not training or self.rate == 0:
            return inputs
        shape = _noise_shape_for(inputs, self.noise_shape, self.name)
        kept = random.uniform(shape, seed=self.seed_generator) >= self.rate
        factor = ((1 - self.rate) * (1 + self.rate * _LOWEST**2)) ** -0.5
        return factor * jnp.where(kept, inputs, _LOWEST) - factor * _LOWEST * self.rate


_LOWEST = -1.7580993408473766
"""What `selu` tends to: the product of its two constants."""


def check_rate_below_one(argument: str, value: Any, layer: str) -> float:
    """`value` as a number from 0 to below 1.

    Raises:
        ModelError: it is none; calls it `argument` of the layer called `layer`.
    """
    return check_number(argument, value, 0, below=1, wrong="is not a fraction below 1", layer=layer, example=0.5)


def _noise_shape_for(inputs: Any, noise_shape: tuple[int | None, ...] | None, layer: str) -> tuple[int, ...]:
    """The shape in which is drawn for these inputs.

    Raises:
        ModelError: `noise_shape` does not fit them.
    """
    if noise_shape is None:
        return inputs.shape
    sizes = (*inputs.shape, *[1] * len(noise_shape))
    shape = tuple(size if dim is None else dim for dim, size in zip(noise_shape, sizes, strict=False))
    check_broadcasts("noise_shape", shape, inputs.shape, layer)
    return (1,) * (inputs.ndim - len(shape)) + shape


def _check_noise_shape(value: Any, layer: str) -> tuple[int | None, ...] | None:
    """`value` as a tuple, or None.

    Raises:
        ModelError: it is neither.
    """
    if value is None:
        return None
    dims = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (0,)
    if not all(dim is None or is_int(dim, 1) for dim in dims):
        expected = "a tuple of positive integers, and None for the size of the input; or None"
        example = (None, 1, None)
        raise argument_error("noise_shape", value, expected, wrong="is no shape", layer=layer, example=example)
    return tuple(None if dim is None else int(dim) for dim in dims)
