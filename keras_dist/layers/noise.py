"""Gaussian noise in training: `GaussianNoise`, `GaussianDropout`; a price of large values: `ActivityRegularization`."""

from __future__ import annotations

import math
from typing import Any

from keras_dist import random, regularizers
from keras_dist._arguments import check_fraction
from keras_dist.layers.dropout import check_rate_below_one
from keras_dist.layers.layer import Layer


class GaussianNoise(Layer):
    """In training, the inputs plus normal noise with mean 0.

    Args:
        stddev: of the noise, from 0 to 1.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `stddev` is not a number from 0 to 1.

    Source: `keras.layers.GaussianNoise`; with one seed, both add the same.
    """

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stddev = check_fraction("stddev", stddev, self.name)
        self.seed = seed
        if self.stddev > 0:
            self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """The inputs, in training with noise."""
        if not training or self.stddev == 0:
            return inputs
        return inputs + random.normal(inputs.shape, 0.0, self.stddev, self.compute_dtype, self.seed_generator)


class GaussianDropout(Layer):
    """In training, the inputs times normal noise with mean 1 and the variance of `Dropout`: `rate / (1 - rate)`.

    Args:
        rate: from 0 to below 1.
        seed: fixes the numbers; by default they follow from the model's seed.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `rate` is not a number from 0 to below 1.

    Differs from Keras: a rate of 1 is refused at once; Keras divides by 0 when training begins.

    Source: `keras.layers.GaussianDropout`; with one seed, both give the same.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate_below_one("rate", rate, self.name)
        self.seed = seed
        if self.rate > 0:
            self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """The inputs, in training with noise."""
        if not training or self.rate == 0:
            return inputs
        deviation = math.sqrt(self.rate / (1 - self.rate))
        return inputs * random.normal(inputs.shape, 1.0, deviation, self.compute_dtype, self.seed_generator)


class ActivityRegularization(Layer):
    """The inputs, as they are; `(l1 * sum(abs(inputs)) + l2 * sum(inputs**2)) / batch` is added to the loss.

    Args:
        l1: 0 or more.
        l2: 0 or more.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: a factor is not a number, infinite, or less than 0.

    Source: `keras.layers.ActivityRegularization`.
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.l1 = l1
        self.l2 = l2
        self._price = regularizers.L1L2(l1, l2)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """The inputs."""
        self.add_loss(self._price(inputs) / max(1, *inputs.shape[:1]))
        return inputs
