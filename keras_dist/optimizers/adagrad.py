"""Gradients divided by the root of the sum, or of a mean, of their squares so far."""

from __future__ import annotations

from typing import Unpack

import optax

from keras_dist._support.arguments import check_number
from keras_dist.optimizers.arguments import CommonArguments
from keras_dist.optimizers.learning_rate import Rate, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer


class Adagrad(Optimizer):
    """`w -= learning_rate * gradient / sqrt(s + epsilon)` with the sum `s` of squared gradients.

    Args:
        learning_rate, **common: as in `Optimizer`.
        initial_accumulator_value: initial value of `s`.
        epsilon: added to `s`, under the root.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.initial_accumulator_value = check_number("initial_accumulator_value", initial_accumulator_value, 0)
        self.epsilon = check_number("epsilon", epsilon, 0)

    def transformation(self) -> optax.GradientTransformation:
        """The scaled gradient times the negative rate."""
        return optax.chain(optax.scale_by_rss(self.initial_accumulator_value, self.epsilon), scale_by_rate())


class Adadelta(Optimizer):
    """`w -= learning_rate * gradient * sqrt(u + epsilon) / sqrt(v + epsilon)`.

    `v` and `u` are the means of squared gradients and of squared updates.

    Args:
        learning_rate, **common: as in `Optimizer`; 1.0 for the form of the paper.
        rho: how much of the means each step keeps.
        epsilon: added to the means, under the roots.
    """

    def __init__(
        self, learning_rate: Rate = 0.001, rho: float = 0.95, epsilon: float = 1e-7, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.rho = check_number("rho", rho, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)

    def transformation(self) -> optax.GradientTransformation:
        """The scaled gradient times the negative rate."""
        return optax.chain(optax.scale_by_adadelta(self.rho, self.epsilon), scale_by_rate())
