"""FTRL."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_number
from keras_dist._support.types import PyTree
from keras_dist.optimizers.arguments import CommonArguments
from keras_dist.optimizers.learning_rate import Rate
from keras_dist.optimizers.optimizer import Optimizer


class Ftrl(Optimizer):
    """Follow the regularized leader: weights computed from sums of gradients, with penalties.

    Args:
        learning_rate, **common: as in `Optimizer`.
        learning_rate_power: exponent of the sums of squares in the rate; 0 for a constant rate.
        initial_accumulator_value: initial value of the sums of squares.
        l1_regularization_strength: factor of the penalty on absolute values.
        l2_regularization_strength: factor of the penalty on squares.
        l2_shrinkage_regularization_strength: factor of a penalty on squares that is added to the gradient.
        beta: adds `beta / (2 * learning_rate)` to the penalty on squares.

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches" (2013).
    """

    needs_params: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.learning_rate_power = check_number("learning_rate_power", learning_rate_power, high=0)
        self.initial_accumulator_value = check_number("initial_accumulator_value", initial_accumulator_value, 0)
        self.l1_regularization_strength = check_number("l1_regularization_strength", l1_regularization_strength, 0)
        self.l2_regularization_strength = check_number("l2_regularization_strength", l2_regularization_strength, 0)
        self.l2_shrinkage_regularization_strength = check_number(
            "l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength, 0
        )
        self.beta = check_number("beta", beta, 0)

    def transformation(self) -> optax.GradientTransformation:
        """Return the rule of the class as an optax transformation."""
        return optax.GradientTransformationExtraArgs(self._init, self._update)

    def _init(self, params: PyTree) -> FtrlState:
        return FtrlState(optax.tree.full_like(params, self.initial_accumulator_value), optax.tree.zeros_like(params))

    def _update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        learning_rate = extra["learning_rate"]
        l1, power = self.l1_regularization_strength, -self.learning_rate_power
        l2 = self.l2_regularization_strength + self.beta / (2 * learning_rate)

        def pull(
            linear: jax.Array, grad: jax.Array, before: jax.Array, after: jax.Array, param: jax.Array
        ) -> jax.Array:
            shrunk = grad + 2 * self.l2_shrinkage_regularization_strength * param
            total = linear + shrunk - (after**power - before**power) / learning_rate * param
            return total.astype(linear.dtype)

        def step(linear: jax.Array, after: jax.Array, param: jax.Array) -> jax.Array:
            return (jnp.clip(linear, -l1, l1) - linear) / (after**power / learning_rate + 2 * l2) - param

        squares = jax.tree.map(lambda s, g: s + jnp.square(g), state.squares, updates)
        linear = jax.tree.map(pull, state.linear, updates, state.squares, squares, params)
        return jax.tree.map(step, linear, squares, params), FtrlState(squares, linear)


class FtrlState(NamedTuple):
    """Sums of squares of gradients, and the linear terms."""

    squares: PyTree
    linear: PyTree
