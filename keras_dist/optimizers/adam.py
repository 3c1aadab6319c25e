"""Adam, and Adam with weight decay."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._arguments import check_number
from keras_dist.errors import ModelError
from keras_dist.optimizers.optimizer import ArgumentsButDecay, CommonArguments, Optimizer
from keras_dist.optimizers.rate import Rate, scale_by_rate


class Adam(Optimizer):
    """Means of gradients divided by the root of the means of their squares.

    Args:
        learning_rate: as of `Optimizer`.
        beta_1: how much of the means each step keeps.
        beta_2: how much of the means of squares each step keeps.
        epsilon: added to the root, before the bias of the first steps is corrected.
        amsgrad: whether the largest mean of squares so far counts instead of the last.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.Adam`.
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
        super().__init__(learning_rate, **common)
        check_betas(beta_1, beta_2)
        check_number("epsilon", epsilon, 0)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.amsgrad = amsgrad

    def transformation(self) -> optax.GradientTransformation:
        """Directions of Adam or AMSGrad, times the negative rate."""
        scale = scale_by_amsgrad if self.amsgrad else scale_by_adam
        return optax.chain(scale(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


class AdamW(Adam):
    """Adam with weight decay.

    Args:
        learning_rate: as of `Optimizer`.
        weight_decay: as of `Optimizer`.
        beta_1: as of `Adam`.
        beta_2: as of `Adam`.
        epsilon: as of `Adam`.
        amsgrad: as of `Adam`.
        **common: as of `Optimizer`.

    Raises:
        ModelError: an argument is not known or out of range.

    Source: `keras.optimizers.AdamW`.
    """

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


def check_betas(beta_1: Any, beta_2: Any) -> None:
    """Nothing, if both are at least 0 and less than 1.

    Raises:
        ModelError: one is not.
    """
    check_number("beta_1", beta_1, 0, below=1)
    check_number("beta_2", beta_2, 0, below=1)


def scale_by_adam(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_adam` with Keras's epsilon, which the correction of the bias leaves alone."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        corrected = epsilon / _root_bias(beta_2, state.count)
        return optax.scale_by_adam(beta_1, beta_2, corrected).update(updates, state, params)

    return optax.GradientTransformation(optax.scale_by_adam(beta_1, beta_2).init, update)


def scale_by_amsgrad(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_amsgrad` as in Keras: the largest mean is chosen first, its bias is corrected afterwards."""
    inner = optax.scale_by_amsgrad(beta_1, beta_2, epsilon, bias_correction_nu=False)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        root = _root_bias(beta_2, state.count)
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda u: u * root, updates), state

    return optax.GradientTransformation(inner.init, update)


def _root_bias(beta_2: float, count: Any) -> jax.Array:
    return jnp.sqrt(1 - beta_2 ** (count + 1))
