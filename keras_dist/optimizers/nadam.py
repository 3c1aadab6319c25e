"""Adam with Nesterov momentum."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from keras_dist._types import ArrayLike, PyTree
from keras_dist.optimizers.adam import MomentsOptimizer
from keras_dist.optimizers.learning_rate import scale_by_rate


class Nadam(MomentsOptimizer):
    """Adam with Nesterov momentum, which grows from half of `beta_1` to all of it.

    Arguments: as of `Adam`.
    """

    def transformation(self) -> optax.GradientTransformation:
        """Directions of Nadam, times the negative rate."""
        return optax.chain(_scale_by_nadam(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


class ScaleByNadamState(NamedTuple):
    """The state of Adam, and the product of the momenta so far."""

    count: ArrayLike
    mu: PyTree
    nu: PyTree
    product: jax.Array


def _scale_by_nadam(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """Nadam with the momenta of Dozat's paper; `optax.scale_by_adam(nesterov=True)` has a constant one.

    Source: Dozat, "Incorporating Nesterov Momentum into Adam" (2016).
    """

    def momentum(step: ArrayLike) -> ArrayLike:
        return beta_1 * (1 - 0.5 * 0.96**step)

    def init(params: PyTree) -> ScaleByNadamState:
        zeros = optax.tree.zeros_like
        return ScaleByNadamState(jnp.zeros((), jnp.int32), zeros(params), zeros(params), jnp.ones(()))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, beta_1, 1)
        nu = optax.tree.update_moment(updates, state.nu, beta_2, 2)
        now, then = momentum(count), momentum(count + 1)
        product = state.product * now
        directions = jax.tree.map(
            lambda g, m, n: (then * m / (1 - product * then) + (1 - now) * g / (1 - product)) / (jnp.sqrt(n) + epsilon),
            updates,
            mu,
            optax.tree.bias_correction(nu, beta_2, count),
        )
        return directions, ScaleByNadamState(count, mu, nu, product)

    return optax.GradientTransformation(init, update)
