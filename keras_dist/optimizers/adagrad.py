"""Adagrad and Adadelta."""

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
        """Return the rule of the class as an optax transformation."""
        return optax.chain(optax.scale_by_rss(self.initial_accumulator_value, self.epsilon), scale_by_rate())


class Adadelta(Optimizer):
    """`w -= learning_rate * gradient * sqrt(u + epsilon) / sqrt(v + epsilon)`.

    `v` and `u` are moving averages of squared gradients and squared updates.

    Args:
        learning_rate, **common: as in `Optimizer`; the paper has a rate of 1.0.
        rho: decay of the means.
        epsilon: added to the means, under the roots.
    """

    def __init__(
        self, learning_rate: Rate = 0.001, rho: float = 0.95, epsilon: float = 1e-7, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.rho = check_number("rho", rho, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        return optax.chain(optax.scale_by_adadelta(self.rho, self.epsilon), scale_by_rate())
