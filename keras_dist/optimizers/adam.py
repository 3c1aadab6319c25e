"""Adam, and Adam with weight decay."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._arguments import check_number
from keras_dist._types import PyTree
from keras_dist.errors import ModelError
from keras_dist.optimizers.learning_rate import Rate, scale_by_rate
from keras_dist.optimizers.optimizer import ArgumentsButDecay, CommonArguments, Optimizer


class MomentsOptimizer(Optimizer):
    """Base of Adam and its variants, with the arguments that they share."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1 = check_number("beta_1", beta_1, 0, below=1)
        self.beta_2 = check_number("beta_2", beta_2, 0, below=1)
        self.epsilon = check_number("epsilon", epsilon, 0)


class Adam(MomentsOptimizer):
    """`w -= learning_rate * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)`.

    Args:
        learning_rate, **common: as of `Optimizer`.
        beta_1: how much of `m`, the mean of gradients, each step keeps.
        beta_2: how much of `v`, the mean of their squares, each step keeps.
        epsilon: added to the root, before the bias of the first steps is corrected.
        amsgrad: whether `v` is the largest mean of squares so far instead of the last.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **common)
        self.amsgrad = amsgrad

    def transformation(self) -> optax.GradientTransformation:
        """Directions of Adam or AMSGrad, times the negative rate."""
        scale = scale_by_amsgrad if self.amsgrad else scale_by_adam
        return optax.chain(scale(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


class AdamW(Adam):
    """Adam after `w -= learning_rate * weight_decay * w`; other arguments as of `Adam`."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: Unpack[ArgumentsButDecay],
    ) -> None:
        if weight_decay is None:
            raise ModelError(
                "AdamW: `weight_decay` is None",
                given="weight_decay=None",
                expected="a number",
                fix="use Adam, which has none",
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **common)


def scale_by_adam(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_adam` with Keras's epsilon, which the correction of the bias does not scale."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        corrected = epsilon / _root_bias(beta_2, state.count)
        return optax.scale_by_adam(beta_1, beta_2, corrected).update(updates, state, params)

    return optax.GradientTransformation(optax.scale_by_adam(beta_1, beta_2).init, update)


def scale_by_amsgrad(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_amsgrad` as in Keras: the maximum is taken before the bias is corrected."""
    inner = optax.scale_by_amsgrad(beta_1, beta_2, epsilon, bias_correction_nu=False)

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        root = _root_bias(beta_2, state.count)
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda u: u * root, updates), state

    return optax.GradientTransformation(inner.init, update)


def _root_bias(beta_2: float, count: jax.Array) -> jax.Array:
    return jnp.sqrt(1 - beta_2 ** (count + 1))
