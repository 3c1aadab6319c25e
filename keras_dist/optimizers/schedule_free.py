"""Schedule-Free AdamW: an average of the weights instead of a schedule of rates."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_int, check_number
from keras_dist._support.types import PyTree
from keras_dist.optimizers.arguments import CommonArguments
from keras_dist.optimizers.learning_rate import Rate
from keras_dist.optimizers.optimizer import Optimizer


class ScheduleFreeState(NamedTuple):
    """Number of updates (int32), the weights `z`, and moving averages of squared gradients."""

    count: jax.Array
    momentum: PyTree
    velocity: PyTree


class ScheduleFreeAdamW(Optimizer):
    """`z -= learning_rate * gradient / (sqrt(v) + epsilon)`, with the mean `x` of `z` over all steps.

    The weights are `(1 - beta_1) * z + beta_1 * x`, also in evaluation.

    Args:
        learning_rate, **common: as in `Optimizer`.
        beta_1: weight of the mean `x`.
        beta_2: decay of `v`, the bias-corrected moving average of squared gradients.
        epsilon: added to the root.
        warmup_steps: number of steps over which the rate grows linearly from 0.

    Source: Defazio et al., "The Road Less Scheduled" (2024).
    """

    needs_params: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1 = check_number("beta_1", beta_1, above=0, high=1)
        self.beta_2 = check_number("beta_2", beta_2, 0, below=1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.warmup_steps = check_int("warmup_steps", warmup_steps, 0)

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""

        def init(params: PyTree) -> ScheduleFreeState:
            # a copy, because the step donates the weights
            return ScheduleFreeState(
                jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, params), optax.tree.zeros_like(params)
            )

        def update(
            updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any
        ) -> tuple[PyTree, ScheduleFreeState]:
            learning_rate = extra["learning_rate"]
            count = jnp.asarray(optax.safe_increment(state.count))
            step = count.astype(jnp.float32)
            rate = learning_rate * jnp.minimum(step / self.warmup_steps, 1.0) if self.warmup_steps else learning_rate
            velocity = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - self.beta_2), state.velocity, updates)
            root = jnp.sqrt(1 - self.beta_2**step)

            def moved(z: Any, v: Any, g: Any) -> Any:
                return z - (rate * g / (jnp.sqrt(v) / root + self.epsilon)).astype(z.dtype)

            momentum = jax.tree.map(moved, state.momentum, velocity, updates)

            def way(y: Any, before: Any, z: Any) -> Any:
                mean = (y - (1 - self.beta_1) * before) / self.beta_1
                mean = (1 - 1 / step) * mean + z / step
                return ((1 - self.beta_1) * z + self.beta_1 * mean - y).astype(y.dtype)

            return jax.tree.map(way, params, state.momentum, momentum), ScheduleFreeState(count, momentum, velocity)

        return optax.GradientTransformationExtraArgs(init, update)
