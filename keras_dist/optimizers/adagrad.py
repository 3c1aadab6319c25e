"""Adagrad and Adadelta."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_number
from keras_dist._support.types import PyTree
from keras_dist.optimizers.arguments import CommonArguments
from keras_dist.optimizers.learning_rate import Rate, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer


class Adagrad(Optimizer):
    """`w -= learning_rate * gradient / sqrt(s + epsilon)` with the sum `s` of squared gradients.

    Args:
        learning_rate, **common: as in `Optimizer`.
        initial_accumulator_value: initial value of `s`.
        epsilon: added to `s`, under the root.
    """

    takes_rows: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.initial_accumulator_value = check_number("initial_accumulator_value", initial_accumulator_value, 0)
        self.epsilon = check_number("epsilon", epsilon, 0)

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        return optax.chain(optax.scale_by_rss(self.initial_accumulator_value, self.epsilon), scale_by_rate())


class RowWiseAdagrad(Adagrad):
    """Adagrad with one `s` for each row of a weight, the sum of means of squared gradients over the row.

    For embedding tables (rows, columns), `s` (rows, 1) takes `1 / columns` of the memory of the table. Arguments as in
    `Adagrad`.

    Example:
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((2,), dtype="int32"), kd.layers.Embedding(1000, 8, name="item")])
        >>> model.compile(kd.optimizers.RowWiseAdagrad(0.05), loss="mse", rowwise="item/embeddings")
        >>> model.optimizer.variables[-1].shape
        (1000, 1)

    Source: https://arxiv.org/abs/1906.00091, `torchrec.optim.RowWiseAdagrad`.
    """

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        return optax.chain(_scale_by_row_sums(self.initial_accumulator_value, self.epsilon), scale_by_rate())


def _scale_by_row_sums(initial: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_rss` with a sum for each row."""

    def init(params: PyTree) -> optax.ScaleByRssState:
        sums = jax.tree.map(lambda w: jnp.full(w.shape[:1] + (1,) * (w.ndim - 1), initial, w.dtype), params)
        return optax.ScaleByRssState(sums)

    def added(g: jax.Array, s: jax.Array) -> jax.Array:
        return s + jnp.mean(jnp.square(g), axis=tuple(range(1, g.ndim)), keepdims=True)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, optax.ScaleByRssState]:
        sums = jax.tree.map(added, updates, state.sum_of_squares)
        return jax.tree.map(lambda g, s: g * jax.lax.rsqrt(s + epsilon), updates, sums), optax.ScaleByRssState(sums)

    return optax.GradientTransformation(init, update)


class Adadelta(Optimizer):
    """`w -= learning_rate * gradient * sqrt(u + epsilon) / sqrt(v + epsilon)`.

    `v` and `u` are moving averages of squared gradients and squared updates.

    Args:
        learning_rate, **common: as in `Optimizer`; the paper has a rate of 1.0.
        rho: decay of the means.
        epsilon: added to the means, under the roots.
    """

    def __init__(
        self, learning_rate: Rate = 0.001, rho: float = 0.95, epsilon: float = 1e-7, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.rho = check_number("rho", rho, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        return optax.chain(optax.scale_by_adadelta(self.rho, self.epsilon), scale_by_rate())
