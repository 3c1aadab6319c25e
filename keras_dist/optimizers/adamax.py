"""Adam with the largest gradient in place of the mean square."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._types import PyTree
from keras_dist.optimizers.adam import MomentsOptimizer
from keras_dist.optimizers.learning_rate import scale_by_rate


class Adamax(MomentsOptimizer):
    """`w -= learning_rate / (1 - beta_1**t) * m / (u + epsilon)`.

    Args:
        learning_rate, **common: as of `Optimizer`.
        beta_1: how much of `m`, the mean of gradients, each step keeps.
        beta_2: how much of `u`, the largest absolute gradient, each step keeps.
        epsilon: added to `u`.
    """

    def transformation(self) -> optax.GradientTransformation:
        """Directions of Adamax, times the negative rate."""
        return optax.chain(_scale_by_adamax(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


def _scale_by_adamax(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_adamax`, but epsilon is never part of what is remembered."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, beta_1, 1)
        nu = jax.tree.map(lambda g, n: jnp.maximum(beta_2 * n, jnp.abs(g)), updates, state.nu)
        means = optax.tree.bias_correction(mu, beta_1, count)
        directions = jax.tree.map(lambda m, n: m / (n + epsilon), means, nu)
        return directions, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adamax(beta_1, beta_2).init, update)
