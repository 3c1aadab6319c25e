"""Adam with the largest gradient in place of the mean square."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._arguments import check_number
from keras_dist.optimizers.adam import check_betas
from keras_dist.optimizers.optimizer import CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate, scale_by_rate


class Adamax(Optimizer):
    """Means of gradients divided by the largest gradients so far, which are forgotten slowly.

    Args:
        learning_rate: as of `Optimizer`.
        beta_1: how much of the means each step keeps.
        beta_2: how much of the largest gradients each step keeps.
        epsilon: added to the largest gradients.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Adamax`.
    """

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
        """Directions of Adamax, times the negative rate."""
        return optax.chain(_scale_by_adamax(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


def _scale_by_adamax(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_adamax`, but epsilon is never part of what is remembered."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, beta_1, 1)
        nu = jax.tree.map(lambda g, n: jnp.maximum(beta_2 * n, jnp.abs(g)), updates, state.nu)
        means = optax.tree.bias_correction(mu, beta_1, count)
        directions = jax.tree.map(lambda m, n: m / (n + epsilon), means, nu)
        return directions, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adamax(beta_1, beta_2).init, update)
