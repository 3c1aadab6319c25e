"""Adam and its variants: AdamW, Adamax, Nadam, Lamb, Schedule-Free AdamW."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_int, check_number
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError
from keras_dist.optimizers.arguments import ArgumentsButDecay, CommonArguments, Rate, scale_by_rate
from keras_dist.optimizers.optimizer import Optimizer


class MomentsOptimizer(Optimizer):
    """Base of Adam and its variants."""

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
        learning_rate, **common: as in `Optimizer`.
        beta_1: decay of `m`, the moving average of gradients.
        beta_2: decay of `v`, the moving average of squared gradients.
        epsilon: added to the root, before bias correction.
        amsgrad: whether `v` is the maximum of the moving averages so far.
    """

    takes_rows: ClassVar[bool] = True

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
        scale = scale_by_amsgrad if self.amsgrad else scale_by_adam
        return optax.chain(scale(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


class AdamW(Adam):
    """Adam after `w -= learning_rate * weight_decay * w`. Arguments as in `Adam`."""

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
            raise ModelError("AdamW: `weight_decay` must be a number", given="weight_decay=None", fix="use Adam")
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **common)


def scale_by_adam(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_adam` with Keras's epsilon, which bias correction does not scale."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        corrected = epsilon / _root_bias(beta_2, state.count)
        return optax.scale_by_adam(beta_1, beta_2, corrected).update(updates, state, params)

    return optax.GradientTransformation(optax.scale_by_adam(beta_1, beta_2).init, update)


def scale_by_amsgrad(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_amsgrad` with Keras's maximum, before bias correction."""
    inner = optax.scale_by_amsgrad(beta_1, beta_2, epsilon, bias_correction_nu=False)

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        root = _root_bias(beta_2, state.count)
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda u: u * root, updates), state

    return optax.GradientTransformation(inner.init, update)


def _root_bias(beta_2: float, count: jax.Array) -> jax.Array:
    return jnp.sqrt(1 - beta_2 ** (count + 1))


class Adamax(MomentsOptimizer):
    """`w -= learning_rate / (1 - beta_1**t) * m / (u + epsilon)`.

    Args:
        learning_rate, **common: as in `Optimizer`.
        beta_1: decay of `m`, the moving average of gradients.
        beta_2: decay of `u`, the largest absolute gradient.
        epsilon: added to `u`.
    """

    def transformation(self) -> optax.GradientTransformation:
        return optax.chain(_scale_by_adamax(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


def _scale_by_adamax(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.scale_by_adamax`, except that the state does not include epsilon."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, beta_1, 1)
        nu = jax.tree.map(lambda g, n: jnp.maximum(beta_2 * n, jnp.abs(g)), updates, state.nu)
        means = optax.tree.bias_correction(mu, beta_1, count)
        directions = jax.tree.map(lambda m, n: m / (n + epsilon), means, nu)
        return directions, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adamax(beta_1, beta_2).init, update)


class Nadam(MomentsOptimizer):
    """Adam with Nesterov momentum, which grows from `beta_1 / 2` to `beta_1`. Arguments as in `Adam`."""

    def transformation(self) -> optax.GradientTransformation:
        return optax.chain(_scale_by_nadam(self.beta_1, self.beta_2, self.epsilon), scale_by_rate())


class ScaleByNadamState(NamedTuple):
    """The state of Adam, and the product of all momenta."""

    count: ArrayLike
    mu: PyTree
    nu: PyTree
    product: jax.Array


def _scale_by_nadam(beta_1: float, beta_2: float, epsilon: float) -> optax.GradientTransformation:
    """Nadam with growing momentum, Dozat 2016; `optax.scale_by_adam(nesterov=True)` has a constant one."""

    def momentum(step: ArrayLike) -> ArrayLike:
        return beta_1 * (1 - 0.5 * 0.96**step)

    def init(params: PyTree) -> ScaleByNadamState:
        zeros = optax.tree.zeros_like
        return ScaleByNadamState(jnp.zeros((), jnp.int32), zeros(params), zeros(params), jnp.ones(()))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, beta_1, 1)
        nu = optax.tree.update_moment(updates, state.nu, beta_2, 2)
        now, then = momentum(count), momentum(count + 1)
        product = state.product * now
        directions = jax.tree.map(
            lambda g, m, n: (then * m / (1 - product * then) + (1 - now) * g / (1 - product)) / (jnp.sqrt(n) + epsilon),
            updates,
            mu,
            optax.tree.bias_correction(nu, beta_2, count),
        )
        return directions, ScaleByNadamState(count, mu, nu, product)

    return optax.GradientTransformation(init, update)


class Lamb(MomentsOptimizer):
    """`w -= learning_rate * norm(w) / norm(d) * d` with the direction `d` of Adam. Arguments as in `Adam`."""

    needs_params: ClassVar[bool] = True

    def transformation(self) -> optax.GradientTransformation:
        directions = optax.scale_by_adam(self.beta_1, self.beta_2, self.epsilon)
        return optax.chain(directions, optax.stateless(functools.partial(self.map_weights, _trusted)), scale_by_rate())


def _trusted(update: jax.Array, param: jax.Array) -> Any:
    """Scale the update of a weight by `norm(param) / norm(update)`."""
    return optax.scale_by_trust_ratio().update(update, optax.EmptyState(), param)[0]


class ScheduleFreeState(NamedTuple):
    """Number of updates (int32), the weights `z`, and moving averages of squared gradients."""

    count: jax.Array
    momentum: PyTree
    velocity: PyTree


class ScheduleFreeAdamW(Optimizer):
    """`z -= learning_rate * gradient / (sqrt(v) + epsilon)`, with the mean `x` of `z` over all steps.

    The weights are `(1 - beta_1) * z + beta_1 * x`, also in evaluation.

    Args:
        learning_rate, **common: as in `Optimizer`.
        beta_1: weight of the mean `x`.
        beta_2: decay of `v`, the bias-corrected moving average of squared gradients.
        epsilon: added to the root.
        warmup_steps: number of steps over which the rate grows linearly from 0.

    Source: Defazio et al., "The Road Less Scheduled" (2024).
    """

    needs_params: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1 = check_number("beta_1", beta_1, above=0, high=1)
        self.beta_2 = check_number("beta_2", beta_2, 0, below=1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.warmup_steps = check_int("warmup_steps", warmup_steps, 0)

    def transformation(self) -> optax.GradientTransformation:

        def init(params: PyTree) -> ScheduleFreeState:
            # a copy, because the step donates the weights
            return ScheduleFreeState(
                jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, params), optax.tree.zeros_like(params)
            )

        def update(
            updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any
        ) -> tuple[PyTree, ScheduleFreeState]:
            learning_rate = extra["learning_rate"]
            count = jnp.asarray(optax.safe_increment(state.count))
            step = count.astype(jnp.float32)
            rate = learning_rate * jnp.minimum(step / self.warmup_steps, 1.0) if self.warmup_steps else learning_rate
            velocity = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - self.beta_2), state.velocity, updates)
            root = jnp.sqrt(1 - self.beta_2**step)

            def moved(z: Any, v: Any, g: Any) -> Any:
                return z - (rate * g / (jnp.sqrt(v) / root + self.epsilon)).astype(z.dtype)

            momentum = jax.tree.map(moved, state.momentum, velocity, updates)

            def way(y: Any, before: Any, z: Any) -> Any:
                mean = (y - (1 - self.beta_1) * before) / self.beta_1
                mean = (1 - 1 / step) * mean + z / step
                return ((1 - self.beta_1) * z + self.beta_1 * mean - y).astype(y.dtype)

            return jax.tree.map(way, params, state.momentum, momentum), ScheduleFreeState(count, momentum, velocity)

        return optax.GradientTransformationExtraArgs(init, update)
