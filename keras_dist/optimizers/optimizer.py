"""`Optimizer`: base of all optimizers, as an optax transformation.

An optimizer has the state of one model: the second `compile` with it raises while the first model lives. Accumulated
gradients are weighted by the divisor of each loss, so that the update is that of one large batch also where batches are
uneven; `optax.MultiSteps` has no weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from keras_dist._support import tree_paths
from keras_dist._support.arguments import check_int, check_is_mesh, check_number, check_optional
from keras_dist._support.dim_names import DimNames, leading, over_slices
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.arguments import (
    LearningRateState,
    Rate,
    ScheduledRateState,
    check_clips,
    check_known,
    check_patterns,
    check_rate,
    rate_after,
)
from keras_dist.optimizers.custom_loops import CustomLoops
from keras_dist.optimizers.optax_optimizer import accumulate, add_batch, mean_gradient, squared_norm_of
from keras_dist.serialization.configurable import Configurable


class OptimizerState(NamedTuple):
    """The state of an optimizer, except its learning rate."""

    iterations: jax.Array  # int32: number of steps, including steps that only accumulate gradients
    slots: PyTree  # state of the transformation
    average: PyTree  # of the weights; empty without `use_ema`
    accumulated: PyTree  # sums of gradients; empty without `gradient_accumulation_steps`
    batch_weight: jax.Array | tuple[()]  # float32: sum of the weights of these batches, or empty


class Optimizer(CustomLoops, Configurable):
    """Base of all optimizers: an optax transformation with the arguments and the order of operations of Keras.

    A step unscales gradients, accumulates them, clips them, decays the weights, applies `transformation`, and averages
    the weights. Arguments are fixed; the state holds everything that changes. An optimizer can be used wherever optax
    takes a transformation.

    Args:
        learning_rate: a number, which `optimizer.learning_rate` reads and sets between steps; a schedule; a callable
            from the number of steps to a rate, written with `jax.numpy`; or a callable without arguments, which is
            called when a step is compiled. With `gradient_accumulation_steps` schedules count batches, while
            `iterations` counts updates, as in Keras.
        weight_decay: each step subtracts `learning_rate * weight_decay * w` from each weight `w`.
        clipnorm: upper limit of the norm of each gradient; in a stack of layers or experts, of each slice.
        clipvalue: upper limit of the absolute values in gradients.
        global_clipnorm: upper limit of the norm of all gradients together.
        use_ema: whether to keep a moving average of the weights, which replaces them at the end of `fit`.
        ema_momentum: decay of the average.
        ema_overwrite_frequency: number of steps after which the average replaces the weights, repeatedly.
        loss_scale_factor: factor by which the loss is multiplied, and gradients are divided.
        gradient_accumulation_steps: number of steps whose mean gradient makes one update. In `fit` each batch is
            weighted by the divisor of its loss, so that the update equals the update of one large batch, also with a
            partial batch. `ema_overwrite_frequency` counts updates.
        name: by default the name of the class in lower case.
        mesh: the mesh of the variables, for code written for DTensor; only compared, as slots follow their parameters.

    Raises:
        ModelError: an argument is unknown, out of range, or excludes another.

    Example:
        A subclass returns the updates of a step; `learning_rate` is passed by keyword.

        >>> import jax.numpy as jnp
        >>> import optax
        >>> from keras_dist import optimizers
        >>> class SignSGD(optimizers.Optimizer):
        ...     def transformation(self):
        ...         return optax.chain(optax.scale_by_sign(), optimizers.scale_by_rate())
        >>> optimizer = SignSGD(0.1, weight_decay=0.01)
        >>> state = optimizer.init({"w": jnp.ones(2)})
        >>> updates, state = optimizer.update({"w": jnp.array([3.0, -4.0])}, state, {"w": jnp.ones(2)})
        >>> [round(update, 3) for update in updates["w"].tolist()]
        [-0.101, 0.099]

    Attributes:
        needs_params: whether `transformation` needs the weights.
        takes_rows: whether the update of a row of a weight depends on this row alone, its slots and scalars, so that
            `compile(rowwise=...)` may leave out the rows that a batch does not look up.

    Differs from Keras: subclasses define `transformation`. Only the learning rate can be changed. An optimizer trains
    one model, or is built for a custom loop. A callable `learning_rate` may take the step. Negative rates, and limits
    of 0 for clipping, are an error. Names are not numbered. Inside an optax transformation `use_ema` and
    `loss_scale_factor` have no effect on `fit`.
    """

    _never_called: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            (
                *("update_step", "backend_update_step", "build", "apply", "apply_gradients"),
                *("stateless_apply", "save_own_variables", "load_own_variables"),
            ),
            "define `transformation`, which returns an optax transformation that creates slots and computes steps",
        ),
        "finalize_variable_values": "override `finalize(state, params)`",
    }

    needs_params: ClassVar[bool] = False
    takes_rows: ClassVar[bool] = False
    name: str
    _excluded: tuple[Any, ...] = ()
    _excluded_names: tuple[str, ...] = ()
    _excluded_paths: frozenset[str] | None = None

    def __init__(
        self,
        learning_rate: Rate,
        *,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        mesh: object = None,
        **unknown: Any,
    ) -> None:
        self._arguments.pop("mesh", None)  # not part of a config
        check_is_mesh(mesh)
        self._mesh = mesh
        check_known(type(self), unknown)
        check_rate(learning_rate)
        clips = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
        check_clips(clips)
        check_optional(check_number, "weight_decay", weight_decay)
        check_optional(check_number, "loss_scale_factor", loss_scale_factor, above=0)
        check_optional(check_int, "gradient_accumulation_steps", gradient_accumulation_steps, 2)
        check_number("ema_momentum", ema_momentum, 0, 1)
        check_optional(check_int, "ema_overwrite_frequency", ema_overwrite_frequency, 1)
        self._rate = learning_rate
        self.weight_decay = weight_decay
        self.clipnorm, self.clipvalue, self.global_clipnorm = clipnorm, clipvalue, global_clipnorm
        self.use_ema = use_ema
        self.ema_momentum = ema_momentum
        self.ema_overwrite_frequency = ema_overwrite_frequency
        self.loss_scale_factor = loss_scale_factor
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.name = name or type(self).__name__.lower()

    def transformation(self) -> optax.GradientTransformation:
        """Return the optax transformation of this optimizer.

        Its `update` gets `learning_rate`, a scalar, by keyword, as `optax.chain(..., scale_by_rate())` expects.
        """
        summary = f"the optimizer {type(self).__name__} defines no `transformation`"
        fix = "for example return optax.chain(optax.scale_by_sign(), optimizers.scale_by_rate())"
        raise ModelError(summary, given=f"{type(self).__name__} without a method `transformation`", fix=fix)

    def init(self, params: PyTree) -> LearningRateState | ScheduledRateState:
        """Return the initial state for weights in any pytree."""
        self._is_used = True
        iterations = jnp.zeros((), jnp.int32)
        state = OptimizerState(
            iterations,
            optax.with_extra_args_support(self.transformation()).init(params),
            average=optax.tree.zeros_like(params) if self.use_ema else (),
            accumulated=optax.tree.zeros_like(params) if self.gradient_accumulation_steps else (),
            batch_weight=jnp.zeros((), jnp.float32) if self.gradient_accumulation_steps else (),
        )
        if callable(self._rate):
            return ScheduledRateState(rate_after(self._rate, iterations), state)
        return LearningRateState(jnp.asarray(self._rate, jnp.float32), state)

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        """Return the updates of the weights, and the new state.

        Args:
            updates: the gradients.
            state: the state before the step.
            params: the weights, if the optimizer needs them.
            **extra: passed to `transformation`, except `batch_weight`, the weight of accumulated gradients; in models
                also `placements`, where gradients and weights are.

        Raises:
            ModelError: the weights are missing.
        """
        self._check_params(params)
        rate, before = state
        if callable(self._rate):
            rate = rate_after(self._rate, before.iterations)  # `iterations` may have been assigned
        extra["learning_rate"] = rate
        weight = extra.pop("batch_weight", 1.0)
        updates = self._unscaled(updates)
        if self.gradient_accumulation_steps is None:
            steps, slots = self._step(updates, before.slots, params, extra)
            accumulated = before.accumulated, before.batch_weight
        else:
            kept = before.slots, before.accumulated, before.batch_weight
            step = functools.partial(self._step, slots=before.slots, params=params, extra=extra)
            steps, slots, *accumulated = accumulate(step, updates, weight, kept, self._is_due(before))
        average = before.average
        if self.use_ema:
            steps, average = self._average(steps, before, params)
        iterations = jnp.asarray(optax.safe_increment(before.iterations))
        if callable(self._rate):
            rate = rate_after(self._rate, iterations)
        return steps, type(state)(rate, OptimizerState(iterations, slots, average, *accumulated))

    def squared_norm(self, updates: PyTree, state: PyTree, batch_weight: ArrayLike = 1.0) -> tuple[Any, Any]:
        """Return the squared global norm of the gradient, unscaled and not clipped, and whether a step is taken."""
        _, before = state
        grads, is_due = self._unscaled(updates), True
        if self.gradient_accumulation_steps is not None:
            sums = add_batch(grads, batch_weight, before.accumulated, before.batch_weight)
            grads, is_due = mean_gradient(*sums), self._is_due(before)
        return squared_norm_of(grads), is_due

    def rate_of_step(self, before: PyTree, after: PyTree) -> Any:
        """Return the learning rate of a step, given the states before and after it."""
        return rate_after(self._rate, before.inner.iterations) if callable(self._rate) else before.learning_rate

    def finalize(self, state: PyTree, params: PyTree) -> PyTree:
        """Return the final weights: their average with `use_ema`, else `params`."""
        if not self.use_ema:
            return params
        return optax.tree.where(state.inner.iterations > 0, state.inner.average, params)

    def averaged(self) -> list[tuple[Any, Any]]:
        """Return pairs of a variable and the variable of its average; none without `use_ema`."""
        if not self.use_ema or self._state is None:
            return []
        flat = traverse_util.flatten_dict(dict(self._state.inner.average))
        if self._holder is None:
            return list(zip(self._trained, flat.values(), strict=True))
        pairs = zip(self._holder.trained, self._holder.parts, strict=True)
        return [(variable, flat[parts]) for variable, parts in pairs if parts in flat]

    def scale_loss(self, loss: ArrayLike, state: PyTree = None) -> ArrayLike:
        """Return the scaled loss, whose gradients `update` takes; a dynamic scale is in `state`."""
        self._has_scaled = True
        return loss if self.loss_scale_factor is None else loss * self.loss_scale_factor

    @property
    def scales_loss(self) -> bool:
        """Whether `update` unscales gradients, which must be gradients of `scale_loss(loss)`."""
        return self.loss_scale_factor is not None

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Exclude weights from weight decay, before the optimizer is used.

        Args:
            var_list: variables, or whole paths.
            var_names: regular expressions; a variable is excluded if one is found in its name, or for a pytree of
                arrays in its path.

        Raises:
            ModelError: the optimizer is already in use, or an entry is invalid.
        """
        if self._is_used or self.built:
            summary = f"exclude_from_weight_decay comes too late: the optimizer {self.name!r} is in use"
            raise ModelError(summary, given="a call after compile() or init()", fix="call it before compile()")
        excluded = tuple(var_list or ())
        if isinstance(var_list, str) or not all(isinstance(path_of(one), str) for one in excluded):
            summary = "exclude_from_weight_decay: `var_list` must be a list of variables or their paths"
            fix = "for example var_list=[model.layers[0].bias]"
            raise ModelError(summary, given=f"var_list={shorten(var_list)}", fix=fix)
        self._excluded = excluded
        self._excluded_names = check_patterns("exclude_from_weight_decay", "var_names", var_names)

    def know_variables(self, variables: Mapping[str, Any]) -> None:
        """Set the variables to update, by the paths that `update` will see."""
        excluded = {
            path
            for path, variable in variables.items()
            if any(_means(one, variable) for one in self._excluded)
            or any(pattern(name).search(getattr(variable, "name", path)) for name in self._excluded_names)
        }
        self._excluded_paths = frozenset(excluded)
        super().know_variables(variables)

    def map_weights(self, function: Callable[..., Any], *trees: PyTree) -> Any:
        """Return `function` of each weight; for a stack of layers or experts, of each slice, stacked again."""

        def apply(key_path: Any, *leaves: Any) -> Any:
            return over_slices(function, leading(self.names_of(tree_paths.join(tree_paths.parts_of(key_path)))))(
                *leaves
            )

        return jax.tree_util.tree_map_with_path(apply, *trees)

    def names_of(self, path: str) -> DimNames:
        """Return the names that its layer gives to the dims of the weight at `path`; empty if it gives none."""
        return self._dim_names.get(path, ())

    def decay_of(self, path: str, param: jax.Array | None) -> float | None:
        """Return the weight decay of the weight at `path`, or None."""
        return None if self._is_excluded(path) else self.weight_decay

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments, with the current learning rate unless it follows a schedule."""
        given = self._arguments
        rate = self._current_rate()
        if "learning_rate" not in given or callable(rate) or np.float32(given["learning_rate"]) == np.float32(rate):
            return given
        return {**given, "learning_rate": rate}

    def __getstate__(self) -> dict[str, Any]:
        """Keep the current rate, and the paths of excluded variables."""
        return {
            **super().__getstate__(),
            "_rate": self._current_rate(),
            "_excluded": tuple(map(path_of, self._excluded)),
        }

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and not name.startswith("_"):
            summary = f"`{name}` of the optimizer {self.__dict__.get('name', type(self).__name__)!r} cannot be changed"
            fix = f"make another optimizer: {type(self).__name__}({name}=...)"
            raise ModelError(summary, given=f"{name} = {shorten(value)}", fix=fix)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _step(self, grads: PyTree, slots: PyTree, params: PyTree, extra: dict[str, Any]) -> tuple[PyTree, PyTree]:
        """Clip, decay, and apply `transformation`."""
        decayed = self._decay(params, extra["learning_rate"])
        steps, slots = optax.with_extra_args_support(self.transformation()).update(
            self._clip(grads), slots, decayed, **extra
        )
        if params is not None:
            steps = jax.tree.map(lambda s, d, p: s if d is p else s + (d - p), steps, decayed, params)
        return jax.tree.map(lambda s, g: s.astype(g.dtype), steps, grads), slots

    def _decay(self, params: PyTree, rate: Any) -> Any:
        """Return the decayed weights; weights without decay are the same objects."""

        def decayed(key_path: Any, param: Any) -> Any:
            decay = self.decay_of(tree_paths.join(tree_paths.parts_of(key_path)), param)
            return param if decay is None else param - (param * decay * rate).astype(param.dtype)

        return jax.tree_util.tree_map_with_path(decayed, params)

    def _is_excluded(self, path: str) -> bool:
        if self._excluded_paths is not None:
            return path in self._excluded_paths
        is_listed = any(path_of(one) == path for one in self._excluded)
        return is_listed or any(pattern(name).search(path) for name in self._excluded_names)

    def _unscaled(self, grads: PyTree) -> PyTree:
        factor = self.loss_scale_factor
        return grads if factor is None else jax.tree.map(lambda g: g / factor, grads)

    def _clip(self, grads: PyTree) -> Any:
        if self.clipnorm is not None:
            return self.map_weights(lambda g: _shortened(g, self.clipnorm), grads)
        if self.global_clipnorm is not None:
            return _shortened(grads, self.global_clipnorm)
        if self.clipvalue is not None:
            return optax.tree.clip(grads, -self.clipvalue, self.clipvalue)
        return grads

    def _is_due(self, before: OptimizerState) -> Any:
        return (before.iterations + 1) % (self.gradient_accumulation_steps or 1) == 0

    def _average(self, steps: Any, before: OptimizerState, params: PyTree) -> tuple[PyTree, PyTree]:
        """Update the average with the weights after the step, and change the step if the average replaces them."""
        iteration = before.iterations // (self.gradient_accumulation_steps or 1)
        kept = jnp.where(iteration == 0, 0.0, self.ema_momentum)
        weights = optax.tree.add(params, steps)
        average = jax.tree.map(lambda a, w: (kept * a + (1 - kept) * w).astype(a.dtype), before.average, weights)
        if self.ema_overwrite_frequency is not None:
            is_time = (iteration + 1) % self.ema_overwrite_frequency == 0
            steps = optax.tree.where(is_time, optax.tree.sub(average, params), steps)
        return steps, average

    def _check_params(self, params: PyTree) -> None:
        if params is None and (self.needs_params or self.weight_decay is not None or self.use_ema):
            summary = f"the optimizer {self.name!r} needs the weights"
            raise ModelError(summary, given="update(grads, state)", fix="pass the weights as the third argument")


def _shortened(grads: PyTree, longest: Any) -> Any:
    """Scale `grads` down to a norm of at most `longest`."""
    norm = optax.tree.norm(grads)
    return jax.tree.map(lambda g: (g * (longest / jnp.maximum(norm, longest))).astype(g.dtype), grads)


def path_of(variable: object) -> Any:
    """Return the path of a variable; return a path unchanged."""
    return getattr(variable, "path", variable)


def _means(entry: Any, variable: Any) -> bool:
    """Whether an entry of `var_list` is this variable or its path."""
    if isinstance(entry, str):
        return entry == path_of(variable)
    return entry is variable
