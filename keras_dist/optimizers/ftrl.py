"""FTRL: weights that follow from sums of gradients, with penalties."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._arguments import check_number
from keras_dist.optimizers.optimizer import CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate


class Ftrl(Optimizer):
    """Follow the regularized leader.

    Args:
        learning_rate: as of `Optimizer`.
        learning_rate_power: how the rate falls with the sums of squares; 0 for not at all.
        initial_accumulator_value: what the sums of squares begin with.
        l1_regularization_strength: of the penalty on absolute values.
        l2_regularization_strength: of the penalty on squares.
        l2_shrinkage_regularization_strength: of a penalty on squares that acts through the gradient.
        beta: of the paper: more penalty on squares, `beta / (2 learning_rate)`.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Ftrl`; McMahan et al., "Ad Click Prediction: a View from the Trenches" (2013).
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
        check_number("learning_rate_power", learning_rate_power, high=0)
        check_number("initial_accumulator_value", initial_accumulator_value, 0)
        check_number("l1_regularization_strength", l1_regularization_strength, 0)
        check_number("l2_regularization_strength", l2_regularization_strength, 0)
        check_number("l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength, 0)
        check_number("beta", beta, 0)
        self.learning_rate_power = learning_rate_power
        self.initial_accumulator_value = initial_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta

    def transformation(self) -> optax.GradientTransformation:
        """From the weights to those that the sums give."""
        return optax.GradientTransformationExtraArgs(self._init, self._update)

    def _init(self, params: Any) -> FtrlState:
        return FtrlState(optax.tree.full_like(params, self.initial_accumulator_value), optax.tree.zeros_like(params))

    def _update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        learning_rate = extra["learning_rate"]
        l1, power = self.l1_regularization_strength, -self.learning_rate_power
        l2 = self.l2_regularization_strength + self.beta / (2 * learning_rate)

        def pull(linear: Any, grad: Any, before: Any, after: Any, param: Any) -> jax.Array:
            shrunk = grad + 2 * self.l2_shrinkage_regularization_strength * param
            total = linear + shrunk - (after**power - before**power) / learning_rate * param
            return total.astype(linear.dtype)

        def step(linear: Any, after: Any, param: Any) -> jax.Array:
            return (jnp.clip(linear, -l1, l1) - linear) / (after**power / learning_rate + 2 * l2) - param

        squares = jax.tree.map(lambda s, g: s + jnp.square(g), state.squares, updates)
        linear = jax.tree.map(pull, state.linear, updates, state.squares, squares, params)
        return jax.tree.map(step, linear, squares, params), FtrlState(squares, linear)


class FtrlState(NamedTuple):
    """Sums of squares of gradients, and the linear terms."""

    squares: Any
    linear: Any
