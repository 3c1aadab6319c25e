"""Learning rates: numbers in state that can be set, or schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from keras_dist._support.signatures import takes
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten, with_type

Rate = float | Callable[[Any], Any]
"""A learning rate, or the rate as a function of the number of steps taken or of nothing."""


class LearningRateState(NamedTuple):
    """A rate that may be set between steps, a float32 scalar, and the state of what it scales."""

    learning_rate: jax.Array
    inner: PyTree


class ScheduledRateState(NamedTuple):
    """The rate of the next step by a schedule, a float32 scalar, and the state of what it scales."""

    learning_rate: jax.Array
    inner: PyTree


class LearningRate(float):
    """A learning rate when it was read, with the methods of Keras's variable.

    It equals the number that was set, `0.005`, although the float32 in state is another one.

    Args:
        value: the rate.
        optimizer: the optimizer that it was read from.
    """

    name = path = "learning_rate"
    shape: tuple[int, ...] = ()
    dtype = jnp.dtype("float32")

    def __new__(cls, value: Any, optimizer: Any) -> LearningRate:
        """A float."""
        rate = super().__new__(cls, value)
        rate._optimizer = optimizer  # type: ignore[attr-defined]
        return rate

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy as a plain float, so that a history of rates does not hold the model."""
        return float, (float(self),)

    def __eq__(self, other: object) -> bool:
        is_number = isinstance(other, float | int | np.floating)
        return bool(np.float32(self) == np.float32(other)) if is_number else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__

    @property
    def value(self) -> np.float32:
        """As numpy has it."""
        return np.float32(self)

    def numpy(self) -> np.float32:
        """As numpy has it."""
        return np.float32(self)

    def assign(self, value: float) -> None:
        """Set `optimizer.learning_rate`.

        Raises:
            ModelError: the optimizer follows a schedule, or it is not a finite number.
        """
        self._optimizer.learning_rate = value  # type: ignore[attr-defined]


def with_learning_rate(
    transformation: optax.GradientTransformation, learning_rate: float
) -> optax.GradientTransformationExtraArgs:
    """`transformation`, then a step of `-learning_rate`, with the rate kept in state.

    Args:
        transformation: gives directions of ascent, such as `optax.scale_by_adam()`.
        learning_rate: the first rate.

    Source: `optax.scale_by_learning_rate`; unlike `optax.inject_hyperparams` it adds nothing to a step's cost.
    """
    inner = optax.chain(transformation, scale_by_rate())

    def init(params: PyTree) -> LearningRateState:
        return LearningRateState(jnp.asarray(learning_rate, jnp.float32), inner.init(params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        rate = state.learning_rate
        updates, inner_state = inner.update(updates, state.inner, params, **{**extra, "learning_rate": rate})
        return updates, LearningRateState(rate, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_rate() -> optax.GradientTransformationExtraArgs:
    """Directions of ascent times `-learning_rate`, which `update` is given by keyword.

    Raises:
        ModelError: by `update`, when it is not given.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import optimizers
        >>> descent = optimizers.scale_by_rate()
        >>> float(descent.update(jnp.ones(()), descent.init(None), learning_rate=0.5)[0])
        -0.5
    """

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        del params
        if "learning_rate" not in extra:
            summary = "scale_by_rate is not given the learning rate"
            fix = "use it in the `transformation` of an Optimizer, or take optax.scale_by_learning_rate(0.1)"
            raise ModelError(summary, given="update(updates, state, params)", fix=fix)
        return jax.tree.map(lambda u: (-extra["learning_rate"] * u).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def checked_rate(value: Any) -> np.float32:
    """Return `value` as a learning rate.

    Raises:
        ModelError: it is not a finite number.
    """
    try:
        is_number = np.ndim(value) == 0 and not isinstance(value, bool | str | bytes)
        rate = np.float32(value) if is_number else np.float32("nan")
    except (TypeError, ValueError):
        rate = np.float32("nan")
    if not np.isfinite(rate):
        fix = "for example 1e-3; a schedule belongs in the optimizer that compile() gets: Adam(schedule)"
        raise ModelError("`learning_rate` must be a finite number", given=with_type(value), fix=fix)
    return rate


def check_rate(value: Any) -> None:
    """Check that `value` is a finite number of at least 0, or callable with a step or without arguments."""
    if not callable(value):
        if checked_rate(value) < 0:
            fix = "to climb up a loss, train its negative"
            raise ModelError("`learning_rate` is negative", given=f"learning_rate={shorten(value)}", fix=fix)
    elif isinstance(value, type) or not (takes(value, 0) or takes(value)):
        fix = "for example learning_rate=lambda step: 0.1 / (1 + step), or a number"
        raise ModelError("`learning_rate` cannot be called with a step", given=shorten(value), fix=fix)


def rate_after(schedule: Callable[..., Any], step: Any) -> jax.Array:
    """Return the rate of `schedule` after `step` steps, a float32 scalar.

    One that takes no step is called when a step is traced, as in Keras: compiled steps keep what it gave then.

    Raises:
        ModelError: it gives no number, or asks a traced step for its value.
    """
    try:
        given = schedule(step) if takes(schedule, step) else schedule()
    except jax.errors.ConcretizationTypeError as error:
        summary = "the schedule of the learning rate needs the value of `step`, which is traced"
        fix = "in place of `if step < n`: jnp.where(step < n, ..., ...)"
        raise ModelError(summary, given=shorten(schedule), fix=fix) from error
    if not isinstance(given, int | float | np.generic | np.ndarray | jax.Array) or np.shape(given):
        summary = "the schedule of the learning rate does not give a number"
        fix = "return one number for each step"
        raise ModelError(summary, given=f"{shorten(schedule)} gives {shorten(given)}", fix=fix)
    return jnp.asarray(given, jnp.float32)
