"""Gradients divided by the root of their mean square."""

from __future__ import annotations

from typing import Unpack

import optax

from keras_dist._arguments import check_number
from keras_dist.optimizers.optimizer import CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate, scale_by_rate


class RMSprop(Optimizer):
    """Gradients divided by the root of their mean square, or of their variance.

    Args:
        learning_rate: as of `Optimizer`.
        rho: how much of the mean each step keeps.
        momentum: how much of its velocity each step keeps.
        epsilon: added to the mean square, under the root.
        centered: whether the square of the mean is taken off, which leaves the variance.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.RMSprop`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        check_number("rho", rho, 0, 1)
        check_number("momentum", momentum, 0, 1)
        check_number("epsilon", epsilon, 0)
        self.rho = rho
        self.momentum = momentum
        self.epsilon = epsilon
        self.centered = centered

    def transformation(self) -> optax.GradientTransformation:
        """The scaled gradient times the negative rate, then momentum."""
        scale = optax.scale_by_stddev if self.centered else optax.scale_by_rms
        directions = scale(self.rho, self.epsilon, eps_in_sqrt=True)
        momentum = optax.trace(self.momentum) if self.momentum else optax.identity()
        return optax.chain(directions, scale_by_rate(), momentum)
