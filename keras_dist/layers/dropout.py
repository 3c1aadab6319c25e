"""Noise that is there in training only: `Dropout`, `SpatialDropout1D/2D/3D`, `GaussianNoise`, `GaussianDropout`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist.layers.arguments import check_rate
from keras_dist.layers.layer import Layer


class Dropout(Layer):
    """In training a fraction of the inputs becomes 0, and the others grow so that the sum stays.

    Args:
        rate: the fraction, from 0 to 1.
        noise_shape: the shape in which is drawn; dims of 1 are dropped together. By default that of the input.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `rate` is not a fraction.

    Source: `keras.layers.Dropout`; with one seed, both drop the same.
    """

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("rate", rate, self.name)
        self.seed = seed
        self.noise_shape = noise_shape
        if self.rate > 0:
            self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """The inputs, in training with noise."""
        if not training or self.rate == 0:
            return inputs
        shape = inputs.shape if self.noise_shape is None else self._shape_for(inputs)
        kept = jax.random.bernoulli(self.seed_generator.next(), 1 - self.rate, shape)
        return jnp.where(kept, inputs / (1 - self.rate), 0) if self.rate < 1 else jnp.zeros_like(inputs)

    def _shape_for(self, inputs: Any) -> tuple[int, ...]:
        return tuple(
            size if wanted is None else wanted for wanted, size in zip(self.noise_shape, inputs.shape, strict=True)
        )
