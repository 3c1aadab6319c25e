"""Arguments that all optimizers share: types, checks, and learning rates, which are numbers in state, or schedules.

The rate is a scalar in the state, around `optax.scale_by_*`: callbacks set it without compiling again, and it costs
nothing in the step. The rate of a plain optax chain is read from `optax.inject_hyperparams`, else it is an error: optax
keeps schedules in closures only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax

from keras_dist._support.arguments import check_exclusive, check_number, check_optional, is_number
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.signatures import takes
from keras_dist._support.types import PyTree
from keras_dist.errors import ArgumentTypeError, ModelError, shorten, unknown_name_error, with_type

Rate = float | Callable[[Any], Any]
"""A learning rate, or a function of the number of steps taken, or of nothing, that returns it."""


class LearningRateState(NamedTuple):
    """A rate that can be set between steps, a float32 scalar, and the state of the scaled transformation."""

    learning_rate: jax.Array
    inner: PyTree


class ScheduledRateState(NamedTuple):
    """The scheduled rate of the next step, a float32 scalar, and the state of the scaled transformation."""

    learning_rate: jax.Array
    inner: PyTree


class LearningRate(float):
    """A learning rate read from an optimizer, with the methods of Keras's variable.

    It equals the number that was set, such as 0.005, although the float32 in state differs.
    """

    name = path = "learning_rate"
    shape: tuple[int, ...] = ()
    dtype = jnp.dtype("float32")

    def __new__(cls, value: Any, optimizer: Any) -> Self:
        """Note the optimizer."""
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
        """The rate as float32."""
        return np.float32(self)

    def numpy(self) -> np.float32:
        """The rate as float32."""
        return np.float32(self)

    def assign(self, value: float) -> None:
        """Set `optimizer.learning_rate`.

        Raises:
            ModelError: the optimizer follows a schedule, or `value` is not a finite number.
        """
        self._optimizer.learning_rate = value  # type: ignore[attr-defined]


def with_learning_rate(
    transformation: optax.GradientTransformation, learning_rate: float
) -> optax.GradientTransformationExtraArgs:
    """Scale the updates of a transformation by `-learning_rate`, with the rate in state.

    Args:
        transformation: a transformation without a rate, such as `optax.scale_by_adam()`.
        learning_rate: the initial rate.

    Source: `optax.scale_by_learning_rate`; unlike `optax.inject_hyperparams` it does not slow a step.
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
    """Scale updates by `-learning_rate`, passed to `update` by keyword.

    Raises:
        ModelError: `update` is called without it.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import optimizers
        >>> descent = optimizers.scale_by_rate()
        >>> float(descent.update(jnp.ones(()), descent.init(None), learning_rate=0.5)[0])
        -0.5
    """

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        if "learning_rate" not in extra:
            fix = "use it in the `transformation` of an Optimizer, or take optax.scale_by_learning_rate(0.1)"
            raise ModelError("scale_by_rate needs the learning rate", given="update(updates, state, params)", fix=fix)
        return jax.tree.map(lambda u: (-extra["learning_rate"] * u).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def checked_rate(value: Any) -> np.float32:
    """Return `value` as a learning rate.

    Raises:
        ModelError: `value` is not a finite number.
    """
    if is_number(value) and abs(value) <= np.finfo("float32").max:
        return np.float32(value)
    fix = "for example 1e-3; a schedule belongs in the optimizer that compile() gets: Adam(schedule)"
    raise ModelError("`learning_rate` must be a finite number", given=with_type(value), fix=fix)


def check_rate(value: Any) -> None:
    """Check that `value` is a finite number of at least 0, or callable with a step or without arguments."""
    if not callable(value):
        if checked_rate(value) < 0:
            fix = "to maximize a loss, train its negative"
            raise ModelError("`learning_rate` is negative", given=f"learning_rate={shorten(value)}", fix=fix)
    elif isinstance(value, type) or not (takes(value, 0) or takes(value)):
        fix = "for example learning_rate=lambda step: 0.1 / (1 + step), or a number"
        raise ModelError("`learning_rate` cannot be called with a step", given=shorten(value), fix=fix)


def rate_after(schedule: Callable[..., Any], step: Any) -> jax.Array:
    """Return the rate of `schedule` after `step` steps, a float32 scalar.

    A schedule without arguments is called when a step is traced, as in Keras; compiled steps keep its result.
    """
    try:
        given = schedule(step) if takes(schedule, step) else schedule()
    except jax.errors.ConcretizationTypeError as error:
        summary = "the schedule of the learning rate needs the value of `step`, which is traced"
        fix = "in place of `if step < n`: jnp.where(step < n, ..., ...)"
        raise ModelError(summary, given=shorten(schedule), fix=fix) from error
    if not isinstance(given, int | float | np.generic | np.ndarray | jax.Array) or np.shape(given):
        summary = "the schedule of the learning rate must return a number"
        fix = "return one number for each step"
        raise ModelError(summary, given=f"{shorten(schedule)} returns {shorten(given)}", fix=fix)
    return jnp.asarray(given, jnp.float32)


class ArgumentsButDecay(TypedDict, total=False):
    """The keyword arguments of every optimizer, without `weight_decay`; see `Optimizer`."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None
    mesh: object


class CommonArguments(ArgumentsButDecay, total=False):
    """The keyword arguments of every optimizer; see `Optimizer`."""

    weight_decay: float | None


def check_known(cls: type, unknown: dict[str, Any]) -> None:
    """Check that an optimizer has no unknown keyword arguments."""
    if not unknown:
        return
    name, value = next(iter(unknown.items()))
    parameters = [
        parameter
        for base in cls.__mro__
        if hasattr(base, "transformation") and "__init__" in vars(base)
        for parameter in list(inspect.signature(base.__init__).parameters.values())[1:]
    ]
    known = list(dict.fromkeys(p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD))
    fix = "learning_rate=..." if name == "lr" else ""
    if name == "decay":
        fix = f"learning_rate=schedules.InverseTimeDecay(rate, decay_steps=1, decay_rate={shorten(value)})"
    summary, given = f"`{cls.__name__}` has no argument", f"{name}={shorten(value)}"
    raise unknown_name_error(summary, name, known, given=given, fix=fix, error=ArgumentTypeError)


def check_clips(clips: dict[str, Any]) -> None:
    """Check that at most one limit for clipping is given, and is positive."""
    check_exclusive(**clips)
    for name, value in clips.items():
        check_optional(check_number, name, value, above=0)


def check_patterns(owner: str, argument: str, values: Iterable[str] | None) -> tuple[str, ...]:
    """Return regular expressions as a tuple, which is empty for None."""
    problem = "a string" if isinstance(values, str) else ""
    try:
        rules = () if values is None else tuple(values)
        for rule in rules:
            pattern(rule)
    except Exception as error:  # the user's own __iter__
        rules, problem = (), str(error)
    if problem:
        summary = f"{owner}: `{argument}` must be a list of regular expressions"
        given = f"{argument}={shorten(values)}: {problem}"
        raise ModelError(summary, given=given, fix=f"for example {argument}=['bias']")
    return rules
