"""Learning rates as functions of the number of steps taken.

Source: names, arguments and defaults as in `keras.optimizers.schedules`.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_number, is_number
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError, shorten
from keras_dist.serialization.configurable import Configurable
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry


class LearningRateSchedule(Configurable):
    """A rate for each step. Subclasses define `__call__` with `jax.numpy`: the step is traced.

    With `gradient_accumulation_steps=n` a schedule counts batches, while `optimizer.iterations` counts updates, as in
    Keras: multiply its numbers of steps by `n`. Schedules inside an optax transformation count updates.

    Example:
        >>> from keras_dist import optimizers
        >>> class Reciprocal(optimizers.schedules.LearningRateSchedule):
        ...     def __init__(self, initial_learning_rate):
        ...         self.initial_learning_rate = initial_learning_rate
        ...     def __call__(self, step):
        ...         return self.initial_learning_rate / (step + 1)
        >>> float(optimizers.SGD(Reciprocal(0.5)).init({}).learning_rate)
        0.5
    """

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        summary = f"the schedule {type(self).__name__} defines no `__call__`"
        fix = "for example return self.initial_learning_rate / (step + 1)"
        raise ModelError(summary, given=f"{type(self).__name__} without __call__(self, step)", fix=fix)


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
            is_list = is_list and not isinstance(numbers, str) and getattr(numbers, "shape", None) != ()
            if not is_list or not all(map(is_number, numbers)):
                summary = f"PiecewiseConstantDecay: `{argument}` must be a list of numbers"
                fix = "for example boundaries=[100, 200], values=[1e-2, 1e-3, 1e-4]"
                raise ModelError(summary, given=f"{argument}={shorten(numbers)}", fix=fix)
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
        step = jnp.asarray(step, jnp.float32)
        if self.cycle:
            left = 1 - step / (self.decay_steps * jnp.maximum(jnp.ceil(step / self.decay_steps), 1))
        else:
            left = 1 - jnp.minimum(step, self.decay_steps) / self.decay_steps
        return (self.initial_learning_rate - self.end_learning_rate) * left**self.power + self.end_learning_rate


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
        self.warmup_steps = check_number("warmup_steps", warmup_steps, 0)
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

    def __call__(self, step: ArrayLike) -> jax.Array:
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


_SCHEDULES = ObjectRegistry(
    "learning_rate_schedule",
    __name__,
    LearningRateSchedule,
    accepted="a LearningRateSchedule",
    example="schedules.CosineDecay(0.1, decay_steps=1000)",
    convert=lambda found: found if callable(found) else None,
)


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """Return the class and arguments of a schedule as plain values.

    Raises:
        ConfigError: an argument cannot be serialized.
    """
    return serialize_keras_object(learning_rate_schedule)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> LearningRateSchedule:
    """Return the schedule of a config of `serialize`, here or in Keras.

    Args:
        config: the config.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        ConfigError: a class or function is unknown.
    """
    return _SCHEDULES.deserialize(config, custom_objects)


__all__ = [
    name
    for name, value in vars().items()
    if getattr(value, "__module__", "").startswith(__name__) and not name.startswith("_")
]  # pyright: ignore[reportUnsupportedDunderAll]
