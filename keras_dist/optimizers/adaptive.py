"""Optimizers with a rate for each weight: Adagrad, Adadelta, RMSprop, Adafactor and FTRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_number
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.optimizers.arguments import CommonArguments, Rate, scale_by_rate
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
        return optax.chain(optax.GradientTransformation(self._init, self._update), scale_by_rate())

    def _init(self, params: PyTree) -> optax.ScaleByRssState:
        """Return the state of `optax.scale_by_rss` with a sum for each row."""

        def sums(w: jax.Array) -> jax.Array:
            return jnp.full(w.shape[:1] + (1,) * (w.ndim - 1), self.initial_accumulator_value, w.dtype)

        return optax.ScaleByRssState(self.map_weights(sums, params))

    def _update(self, updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, optax.ScaleByRssState]:
        def added(g: jax.Array, s: jax.Array) -> jax.Array:
            return s + jnp.mean(jnp.square(g), axis=tuple(range(1, g.ndim)), keepdims=True)

        sums = self.map_weights(added, updates, state.sum_of_squares)
        steps = jax.tree.map(lambda g, s: g * jax.lax.rsqrt(s + self.epsilon), updates, sums)
        return steps, optax.ScaleByRssState(sums)


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
        return optax.chain(optax.scale_by_adadelta(self.rho, self.epsilon), scale_by_rate())


class RMSprop(Optimizer):
    """`w -= learning_rate * gradient / sqrt(v + epsilon)` with a moving average `v`.

    Args:
        learning_rate, **common: as in `Optimizer`.
        rho: decay of `v`, the moving average of squared gradients.
        momentum: decay of the velocity.
        epsilon: added to `v`, under the root.
        centered: whether `v` is a moving variance.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.rho = check_number("rho", rho, 0, 1)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.centered = centered

    def transformation(self) -> optax.GradientTransformation:
        scale = optax.scale_by_stddev if self.centered else optax.scale_by_rms
        directions = scale(self.rho, self.epsilon, eps_in_sqrt=True)
        momentum = optax.trace(self.momentum) if self.momentum else optax.identity()
        return optax.chain(directions, scale_by_rate(), momentum)


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
        return optax.GradientTransformationExtraArgs(self._init, self._update)

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

        each = self.map_weights
        rows = each(lambda g, r: blend(r, g, -1) if g.ndim > 1 else r, updates, state.rows)
        columns = each(lambda g, c: blend(c, g, -2) if g.ndim > 1 else c, updates, state.columns)
        entries = each(lambda g, e: e if g.ndim > 1 else blend(e, g, ()), updates, state.entries)
        steps = each(step, updates, rows, columns, entries, params)
        return steps, AdafactorState(count, rows, columns, entries)

    def _init(self, params: PyTree) -> AdafactorState:
        def zeros(shape_of: Callable[[tuple[int, ...]], tuple[int, ...]], is_factored: bool) -> PyTree:
            # dims of 1 where nothing is kept: slots are matched to variables by rank
            def make(p: jax.Array) -> jax.Array:
                return jnp.zeros(shape_of(p.shape) if (p.ndim > 1) == is_factored else (1,) * p.ndim, p.dtype)

            return self.map_weights(make, params)

        return AdafactorState(
            jnp.zeros((), jnp.int32),
            rows=zeros(lambda shape: (*shape[:-1], 1), is_factored=True),
            columns=zeros(lambda shape: (*shape[:-2], 1, shape[-1]), is_factored=True),
            entries=zeros(lambda shape: shape, is_factored=False),
        )


class AdafactorState(NamedTuple):
    """Mean squares of gradients."""

    count: ArrayLike
    rows: PyTree  # means over the last dim
    columns: PyTree  # means over the last dim but one
    entries: PyTree  # of variables with less than two dims


def _rms(values: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(values)))


class FtrlState(NamedTuple):
    """Sums of squares of gradients, and the linear terms."""

    squares: PyTree
    linear: PyTree


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
