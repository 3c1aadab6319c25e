"""Adam with Nesterov momentum."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._arguments import check_number
from keras_dist.optimizers.adam import check_betas
from keras_dist.optimizers.optimizer import CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate, scale_by_rate


class Nadam(Optimizer):
    """Adam with Nesterov momentum, which grows from half of `beta_1` to all of it.

    Args:
        learning_rate: as of `Optimizer`.
        beta_1: how much of the means of gradients each step keeps.
        beta_2: how much of the means of their squares each step keeps.
        epsilon: added to the root of the means of squares.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Nadam`.
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
        """Directions of Nadam, times the negative rate."""
        return optax.chain(_scale_by_nadam(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


class ScaleByNadamState(NamedTuple):
    """The state of Adam, and the product of the momenta so far."""

    count: Any
    mu: Any
    nu: Any
    product: Any


def _scale_by_nadam(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """Nadam with the momenta of Dozat's paper; `optax.scale_by_adam(nesterov=True)` has a constant one.

    Source: Dozat, "Incorporating Nesterov Momentum into Adam" (2016).
    """

    def momentum(step: Any) -> jax.Array:
        return beta_1 * (1 - 0.5 * 0.96**step)

    def init(params: Any) -> ScaleByNadamState:
        zeros = optax.tree.zeros_like
        return ScaleByNadamState(jnp.zeros((), jnp.int32), zeros(params), zeros(params), jnp.ones(()))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
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
