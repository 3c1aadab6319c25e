"""Gradients divided by the root of the sum, or of a mean, of their squares so far."""

from __future__ import annotations

from typing import Unpack

import optax

from keras_dist._arguments import check_number
from keras_dist.optimizers.optimizer import CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate, scale_by_rate


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of their squares so far.

    Args:
        learning_rate: as of `Optimizer`.
        initial_accumulator_value: what the sums begin with.
        epsilon: added to the sums, under the root.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Adagrad`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        check_number("initial_accumulator_value", initial_accumulator_value, 0)
        check_number("epsilon", epsilon, 0)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def transformation(self) -> optax.GradientTransformation:
        """The scaled gradient times the negative rate."""
        return optax.chain(optax.scale_by_rss(self.initial_accumulator_value, self.epsilon), scale_by_rate())


class Adadelta(Optimizer):
    """Gradients scaled to the mean square of the updates so far.

    Args:
        learning_rate: as of `Optimizer`; 1.0 as in the paper.
        rho: how much of the means each step keeps.
        epsilon: added to the means, under the roots.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Adadelta`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        check_number("rho", rho, 0, 1)
        check_number("epsilon", epsilon, 0)
        self.rho = rho
        self.epsilon = epsilon

    def transformation(self) -> optax.GradientTransformation:
        """The scaled gradient times the negative rate."""
        return optax.chain(optax.scale_by_adadelta(self.rho, self.epsilon), scale_by_rate())
