"""Gradient descent with momentum: SGD, and its signs (Lion)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import optax

from keras_dist._support.arguments import check_number
from keras_dist.optimizers.arguments import CommonArguments, Rate, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer


class SGD(Optimizer):
    """`w += velocity` with `velocity = momentum * velocity - learning_rate * gradient`.

    Args:
        learning_rate, **common: as in `Optimizer`.
        momentum: decay of the velocity.
        nesterov: whether `w += momentum * velocity - learning_rate * gradient` instead.
    """

    takes_rows: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.nesterov = nesterov

    def transformation(self) -> optax.GradientTransformation:
        """Scale by the rate first, so that a new rate does not rescale the velocity."""
        if not self.momentum:
            return scale_by_rate()
        return optax.chain(scale_by_rate(), optax.trace(self.momentum, self.nesterov))


class Lion(Optimizer):
    """`w -= learning_rate * sign(beta_1 * m + (1 - beta_1) * gradient)` with a moving average `m`.

    Args:
        learning_rate, **common: as in `Optimizer`; a good rate is a third to a tenth of Adam's.
        beta_1: weight of `m`, the moving average of gradients.
        beta_2: decay of `m`.
    """

    def __init__(
        self, learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1 = check_number("beta_1", beta_1, above=0, high=1)
        self.beta_2 = check_number("beta_2", beta_2, 0, 1)

    def transformation(self) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_lion(self.beta_1, self.beta_2), scale_by_rate())
