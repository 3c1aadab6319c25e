"""Exponential, inverse time, piecewise constant and polynomial decay."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_number
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.schedules.schedule import LearningRateSchedule


class ExponentialDecay(LearningRateSchedule):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`.

    Args:
        initial_learning_rate: the initial rate.
        decay_steps: number of steps after which the rate is multiplied by `decay_rate`.
        decay_rate: factor of the decay.
        staircase: whether the rate changes only every `decay_steps` steps.
        name: unused.

    Raises:
        ModelError: an argument is out of range.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        self.initial_learning_rate = check_number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = check_number("decay_steps", decay_steps, above=0)
        self.decay_rate = check_number("decay_rate", decay_rate)
        self.staircase = staircase
        self.name = name

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        return self.initial_learning_rate * jnp.float32(self.decay_rate) ** self._periods(step)

    def _periods(self, step: ArrayLike) -> jax.Array:
        periods = jnp.asarray(step, jnp.float32) / self.decay_steps
        return jnp.floor(periods) if self.staircase else periods


class InverseTimeDecay(ExponentialDecay):
    """`initial_learning_rate / (1 + decay_rate * step / decay_steps)`. Arguments as in `ExponentialDecay`."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        super().__init__(initial_learning_rate, decay_steps, decay_rate, staircase, name)

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        return self.initial_learning_rate / (1 + self.decay_rate * self._periods(step))


class PiecewiseConstantDecay(LearningRateSchedule):
    """A constant rate up to each boundary, including that step.

    Args:
        boundaries: numbers of steps, in increasing order.
        values: the rate up to each boundary, and after the last.
        name: unused.

    Raises:
        ModelError: `values` does not have one more entry than `boundaries`, or `boundaries` is not increasing.
    """

    def __init__(self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant") -> None:
        for argument, numbers in (("boundaries", boundaries), ("values", values)):
            is_list = isinstance(numbers, Sequence | np.ndarray)  # pyright: ignore[reportUnnecessaryIsInstance]
            if not is_list or isinstance(numbers, str) or np.ndim(numbers) != 1:
                summary = f"PiecewiseConstantDecay: `{argument}` must be a list of numbers"
                fix = "for example boundaries=[100, 200], values=[1e-2, 1e-3, 1e-4]"
                raise ModelError(summary, given=f"{argument}={shorten(numbers)}", fix=fix)
            for number in numbers:
                check_number(argument, number)
        if len(boundaries) != len(values) - 1:
            summary = "PiecewiseConstantDecay: `boundaries` and `values` do not fit"
            fix = "give a value for the steps up to each boundary, and one for the steps after the last"
            raise ModelError(summary, given=f"{len(boundaries)} boundaries and {len(values)} values", fix=fix)
        if np.any(np.diff(boundaries) <= 0):
            summary = "PiecewiseConstantDecay: `boundaries` must be in increasing order"
            given = f"boundaries={shorten(list(boundaries))}"
            raise ModelError(summary, given=given, fix="sort them, and their values")
        self.boundaries = boundaries
        self.values = values
        self.name = name

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        passed = jnp.sum(jnp.asarray(step) > jnp.asarray(self.boundaries), dtype=jnp.int32)
        return jnp.asarray(self.values, jnp.float32)[passed]


class PolynomialDecay(LearningRateSchedule):
    """`(initial - end) * (1 - step / decay_steps) ** power + end`.

    Args:
        initial_learning_rate: the initial rate.
        decay_steps: number of steps after which the rate is `end_learning_rate`.
        end_learning_rate: the final rate.
        power: exponent; 1 for linear decay.
        cycle: whether the rate rises again after each multiple of `decay_steps`.
        name: unused.

    Raises:
        ModelError: an argument is out of range.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self.initial_learning_rate = check_number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = check_number("decay_steps", decay_steps, above=0)
        self.end_learning_rate = check_number("end_learning_rate", end_learning_rate)
        self.power = check_number("power", power)
        self.cycle = cycle
        self.name = name

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        step = jnp.asarray(step, jnp.float32)
        if self.cycle:
            left = 1 - step / (self.decay_steps * jnp.maximum(jnp.ceil(step / self.decay_steps), 1))
        else:
            left = 1 - jnp.minimum(step, self.decay_steps) / self.decay_steps
        return (self.initial_learning_rate - self.end_learning_rate) * left**self.power + self.end_learning_rate
