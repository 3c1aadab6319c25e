"""LAMB: steps of Adam as long as the variable asks for."""

from __future__ import annotations

from typing import ClassVar, Unpack

import optax

from keras_dist._arguments import check_number
from keras_dist.optimizers.adam import check_betas
from keras_dist.optimizers.optimizer import CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate, scale_by_rate


class Lamb(Optimizer):
    """Adam whose step for each variable is as long as the variable, times the rate.

    Args:
        learning_rate: as of `Optimizer`.
        beta_1: how much of the means of gradients each step keeps.
        beta_2: how much of the means of their squares each step keeps.
        epsilon: added to the root of the means of squares.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Lamb`.
    """

    needs_params: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        check_betas(beta_1, beta_2)
        check_number("epsilon", epsilon, 0)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def transformation(self) -> optax.GradientTransformation:
        """Directions of Adam, brought to the norm of their variable, times the negative rate."""
        directions = optax.scale_by_adam(self.beta_1, self.beta_2, self.epsilon)
        return optax.chain(directions, optax.scale_by_trust_ratio(), scale_by_rate())
