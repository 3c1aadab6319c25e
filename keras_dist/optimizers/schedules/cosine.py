"""Cosine decay, with and without restarts."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_number
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.optimizers.schedules.schedule import LearningRateSchedule


class CosineDecay(LearningRateSchedule):
    """Decay of the rate along half a cosine to `alpha` times the rate, after an optional linear warmup.

    Args:
        initial_learning_rate: the initial rate.
        decay_steps: number of steps of the decay.
        alpha: the final rate divided by the highest.
        name: unused.
        warmup_target: the rate after the warmup; None for no warmup.
        warmup_steps: number of steps of the warmup.

    Raises:
        ModelError: an argument is out of range, or `warmup_steps` is given without `warmup_target`.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ) -> None:
        if warmup_target is not None:
            check_number("warmup_target", warmup_target)
        elif warmup_steps:
            summary = "CosineDecay: `warmup_steps` without `warmup_target`"
            fix = f"for example initial_learning_rate=0.0, warmup_target={initial_learning_rate}"
            raise ModelError(summary, given=f"warmup_steps={warmup_steps}, warmup_target=None", fix=fix)
        self.initial_learning_rate = check_number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = check_number("decay_steps", decay_steps, above=0)
        self.alpha = check_number("alpha", alpha)
        self.name = name
        self.warmup_target = warmup_target
        self.warmup_steps = check_number("warmup_steps", warmup_steps, 0)

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        step = jnp.asarray(step, jnp.float32)
        first, target = self.initial_learning_rate, self.warmup_target
        top = first if target is None else target
        fraction = jnp.minimum(step - self.warmup_steps, self.decay_steps) / self.decay_steps
        decayed = top * _between(_half_cosine(fraction), self.alpha)
        if not self.warmup_steps:
            return decayed
        return jnp.where(step < self.warmup_steps, first + (top - first) / self.warmup_steps * step, decayed)


class CosineDecayRestarts(LearningRateSchedule):
    """Decay of the rate along half a cosine to `alpha` times the rate, with restarts.

    Args:
        initial_learning_rate: the initial rate.
        first_decay_steps: number of steps of the first decay.
        t_mul: factor of the number of steps from one decay to the next.
        m_mul: factor of the initial rate from one decay to the next.
        alpha: the final rate of a decay divided by its initial rate.
        name: unused.

    Raises:
        ModelError: an argument is out of range.

    Differs from Keras: rounding errors do not delay a restart by a step.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self.initial_learning_rate = check_number("initial_learning_rate", initial_learning_rate)
        self.first_decay_steps = check_number("first_decay_steps", first_decay_steps, above=0)
        self.t_mul = check_number("t_mul", t_mul, 1)
        self.m_mul = check_number("m_mul", m_mul, 0)
        self.alpha = check_number("alpha", alpha)
        self.name = name

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        periods = jnp.asarray(step, jnp.float32) / self.first_decay_steps
        if self.t_mul == 1:
            restarts = jnp.floor(periods)
            fraction = periods - restarts
        else:
            t_mul = jnp.float32(self.t_mul)
            # a rounding error may put the quotient of logarithms below a whole number
            restarts = jnp.floor(jnp.log(1 - periods * (1 - t_mul)) / jnp.log(t_mul) + 1e-5)
            length = t_mul**restarts
            fraction = (periods - (1 - length) / (1 - t_mul)) / length
        top = jnp.float32(self.m_mul) ** restarts
        return self.initial_learning_rate * _between(top * _half_cosine(fraction), self.alpha)


def _half_cosine(fraction: jax.Array) -> jax.Array:
    """1 at 0, 0 at 1."""
    return 0.5 * (1 + jnp.cos(jnp.pi * fraction))


def _between(part: jax.Array, alpha: float) -> jax.Array:
    """`alpha` at 0, 1 at 1."""
    return (1 - alpha) * part + alpha
