"""RMSprop."""

from __future__ import annotations

from typing import Unpack

import optax

from keras_dist._support.arguments import check_number
from keras_dist.optimizers.arguments import CommonArguments
from keras_dist.optimizers.learning_rate import Rate, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer


class RMSprop(Optimizer):
    """`w -= learning_rate * gradient / sqrt(v + epsilon)` with a moving average `v`.

    Args:
        learning_rate, **common: as in `Optimizer`.
        rho: decay of `v`, the moving average of squared gradients.
        momentum: decay of the velocity.
        epsilon: added to `v`, under the root.
        centered: whether `v` is a moving variance.
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
        self.rho = check_number("rho", rho, 0, 1)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.centered = centered

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        scale = optax.scale_by_stddev if self.centered else optax.scale_by_rms
        directions = scale(self.rho, self.epsilon, eps_in_sqrt=True)
        momentum = optax.trace(self.momentum) if self.momentum else optax.identity()
        return optax.chain(directions, scale_by_rate(), momentum)
