"""Optimizers: optax under Keras's names and defaults, with the learning rate kept in state.

A learning rate in state can be read and set between steps without recompiling anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from keras_dist.errors import ModelError, UnknownNameError, did_you_mean

__all__ = ["LearningRateState", "get", "with_learning_rate"]


class LearningRateState(NamedTuple):
    """State of `with_learning_rate`: the rate, a float32 scalar, and the state of what it scales."""

    learning_rate: Any
    inner: Any


def with_learning_rate(
    transformation: optax.GradientTransformation, learning_rate: float
) -> optax.GradientTransformationExtraArgs:
    """`transformation`, then a step of `-learning_rate`, with the rate kept in state.

    Args:
        transformation: gives directions of ascent, such as `optax.scale_by_adam()`.
        learning_rate: the first rate.

    Source: `optax.scale_by_learning_rate`; unlike `optax.inject_hyperparams` it adds nothing to a step's cost.
    """
    inner = optax.with_extra_args_support(transformation)

    def init(params: Any) -> LearningRateState:
        return LearningRateState(jnp.asarray(learning_rate, jnp.float32), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        rate = state.learning_rate
        updates = jax.tree.map(lambda u: (-rate * u).astype(u.dtype), updates)
        return updates, LearningRateState(rate, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _adamw() -> optax.GradientTransformation:
    return optax.chain(optax.scale_by_adam(eps=1e-7), optax.add_decayed_weights(0.004))


def _rmsprop() -> optax.GradientTransformation:
    return optax.scale_by_rms(decay=0.9, eps=1e-7, eps_in_sqrt=True)


# Keras's default rate, and the direction with Keras's defaults
_NAMES: dict[str, tuple[float, Callable[[], optax.GradientTransformation]]] = {
    "adam": (0.001, lambda: optax.scale_by_adam(eps=1e-7)),
    "adamw": (0.001, _adamw),
    "rmsprop": (0.001, _rmsprop),
    "sgd": (0.01, optax.identity),
}


def get(identifier: Any, learning_rate: float | None = None) -> optax.GradientTransformationExtraArgs:
    """The optimizer called `identifier`; an optax transformation as it is.

    Args:
        identifier: `"sgd"`, `"adam"`, `"adamw"`, `"rmsprop"` (any case), or an optax transformation.
        learning_rate: for a name, another rate than Keras's default.

    Raises:
        UnknownNameError: no optimizer has this name.
        ModelError: it is neither a name nor an optax transformation.

    Example:
        >>> from keras_dist import optimizers
        >>> float(optimizers.get("adam", learning_rate=0.01).init({}).learning_rate)
        0.009999999776482582
    """
    if isinstance(identifier, str):
        if identifier.lower() not in _NAMES:
            raise UnknownNameError(
                f"unknown optimizer {identifier!r}{did_you_mean(identifier.lower(), _NAMES)}",
                given=f"optimizer={identifier!r}",
                expected=f"one of {', '.join(sorted(_NAMES))}, or an optax transformation",
                fix="correct the name, or pass for example optax.adagrad(0.01)",
            )
        rate, transformation = _NAMES[identifier.lower()]
        return with_learning_rate(transformation(), rate if learning_rate is None else learning_rate)
    if callable(getattr(identifier, "init", None)) and callable(getattr(identifier, "update", None)):
        return optax.with_extra_args_support(identifier)
    raise ModelError(
        "`optimizer` is neither a name nor an optax transformation",
        given=f"{identifier!r} of type {type(identifier).__name__}",
        expected="a name, or an optax.GradientTransformation",
        fix='for example optimizer="adam" or optimizer=optax.adam(1e-3)',
    )
