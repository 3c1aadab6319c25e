"""Adafactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_number
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.optimizers.arguments import CommonArguments
from keras_dist.optimizers.learning_rate import Rate
from keras_dist.optimizers.optimizer import Optimizer


class Adafactor(Optimizer):
    """`w -= rate * max(epsilon_2, rms(w)) * clip(gradient / sqrt(v))`, with `v` factored into rows and columns.

    `v` is the mean of squared gradients, `rate` is `min(learning_rate, 1 / sqrt(t))` after t updates.

    Args:
        learning_rate, **common: as in `Optimizer`.
        beta_2_decay: after t updates the decay of means is `1 - t ** beta_2_decay`.
        epsilon_1: added to squares of gradients.
        epsilon_2: lower limit of `rms(w)`, by which steps are scaled.
        clip_threshold: upper limit of the root mean square of a direction.
        relative_step: unused; Keras always limits the rate.
    """

    needs_params: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_2_decay = check_number("beta_2_decay", beta_2_decay, high=0)
        self.epsilon_1 = check_number("epsilon_1", epsilon_1, 0)
        self.epsilon_2 = check_number("epsilon_2", epsilon_2, 0)
        self.clip_threshold = check_number("clip_threshold", clip_threshold, above=0)
        self.relative_step = relative_step

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        return optax.GradientTransformationExtraArgs(_init, self._update)

    def _update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        count = optax.safe_increment(state.count)
        time = jnp.asarray(count, jnp.float32)
        kept = 1 - time**self.beta_2_decay
        rate = jnp.minimum(extra["learning_rate"], 1 / jnp.sqrt(time))

        def blend(mean: jax.Array, grad: jax.Array, axis: int | tuple[()]) -> jax.Array:
            new = jnp.mean(jnp.square(grad) + self.epsilon_1, axis, keepdims=True)
            return (kept * mean + (1 - kept) * new).astype(mean.dtype)

        def step(grad: jax.Array, row: jax.Array, column: jax.Array, entry: jax.Array, param: jax.Array) -> jax.Array:
            mean = row / jnp.mean(row, -2, keepdims=True) * column if grad.ndim > 1 else entry
            direction = grad / jnp.sqrt(mean)
            clipped = direction / jnp.maximum(1, _rms(direction) / self.clip_threshold)
            return -rate * jnp.maximum(self.epsilon_2, _rms(param)) * clipped

        rows = jax.tree.map(lambda g, r: blend(r, g, -1) if g.ndim > 1 else r, updates, state.rows)
        columns = jax.tree.map(lambda g, c: blend(c, g, -2) if g.ndim > 1 else c, updates, state.columns)
        entries = jax.tree.map(lambda g, e: e if g.ndim > 1 else blend(e, g, ()), updates, state.entries)
        steps = jax.tree.map(step, updates, rows, columns, entries, params)
        return steps, AdafactorState(count, rows, columns, entries)


class AdafactorState(NamedTuple):
    """Mean squares of gradients."""

    count: ArrayLike
    rows: PyTree  # means over the last dim
    columns: PyTree  # means over the last dim but one
    entries: PyTree  # of variables with less than two dims


def _init(params: PyTree) -> AdafactorState:
    def zeros(shape_of: Callable[[tuple[int, ...]], tuple[int, ...]], is_factored: bool) -> PyTree:
        # dims of 1 where nothing is kept: slots are matched to variables by rank
        return jax.tree.map(
            lambda p: jnp.zeros(shape_of(p.shape) if (p.ndim > 1) == is_factored else (1,) * p.ndim, p.dtype), params
        )

    return AdafactorState(
        jnp.zeros((), jnp.int32),
        rows=zeros(lambda shape: (*shape[:-1], 1), is_factored=True),
        columns=zeros(lambda shape: (*shape[:-2], 1, shape[-1]), is_factored=True),
        entries=zeros(lambda shape: shape, is_factored=False),
    )


def _rms(values: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(values)))
