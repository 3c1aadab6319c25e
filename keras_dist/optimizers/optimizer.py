"""`Optimizer`: what all optimizers share, in the order of Keras, as one optax transformation."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from keras_dist._support.arguments import check_int, check_is_mesh, check_number, check_optional
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.accumulation import add_batch, mean_gradient, squared_norm_of
from keras_dist.optimizers.arguments import check_clips, check_known
from keras_dist.optimizers.learning_rate import LearningRateState, Rate, ScheduledRateState, check_rate, rate_after
from keras_dist.optimizers.weight_decay import WeightDecay, path_of
from keras_dist.saving.configurable import Configurable


class OptimizerState(NamedTuple):
    """The state of an optimizer beside its learning rate.

    Attributes:
        iterations: steps taken, those that only accumulate gradients included; an int32 scalar.
        slots: of the transformation.
        average: of the weights, shaped as they are; empty without `use_ema`.
        accumulated: sums of gradients, shaped as the weights; empty without `gradient_accumulation_steps`.
        batch_weight: sum of the weights of these batches, a float32 scalar; empty without
            `gradient_accumulation_steps`.
    """

    iterations: jax.Array
    slots: PyTree
    average: PyTree
    accumulated: PyTree
    batch_weight: jax.Array | tuple[()]


class Optimizer(WeightDecay, Configurable):
    """The base of all optimizers: an optax transformation with the arguments, and the order of operations, of Keras.

    A step unscales the gradients, accumulates them, clips, decays the weights, takes the step of `transformation`, and
    averages the weights. An optimizer is fixed once it is made; what changes from step to step is in its state. It can
    be used wherever optax takes a transformation.

    Args:
        learning_rate: a number, which `optimizer.learning_rate` reads and sets between steps; a schedule; a
            callable from the number of steps taken to a rate, made of `jax.numpy`; or one without arguments, which
            is called when a step is compiled.
        weight_decay: every step takes the part `learning_rate * weight_decay` off each weight.
        clipnorm: the largest norm of each variable's gradient.
        clipvalue: the largest absolute value of an entry of a gradient.
        global_clipnorm: the largest norm of all gradients together.
        use_ema: whether an average of the weights over the steps is kept; `fit` ends with it in place of the weights.
        ema_momentum: how much of the average each step keeps.
        ema_overwrite_frequency: after how many steps the weights become their average, again and again.
        loss_scale_factor: what the loss is multiplied by before gradients are computed; they are divided by it.
        gradient_accumulation_steps: how many steps' gradients make one update, of their mean. In `fit` each batch
            counts for what its loss was divided by, so that the update is that of one large batch, also where the last
            batch is shorter. Schedules count all steps, `ema_overwrite_frequency` counts updates.
        name: by default that of the class in lower case.
        mesh: that of the variables, as code that was written for DTensor says it; compared, and nothing else: slots
            have the layouts of their parameters.

    Raises:
        ModelError: an argument is not known, out of range, or excludes another.

    Example:
        A subclass returns the updates of a step; `learning_rate` comes by keyword.

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
        needs_params: whether `transformation` cannot do without the weights.

    Differs from Keras: subclasses define `transformation`; only its learning rate can be changed; one optimizer trains
    one model, whose arrays its variables are, or is built for a custom loop; a callable `learning_rate` may take
    the step; negative rates, and limits of 0 for clipping, are an error; names are not numbered. Inside of an optax
    transformation, `compile` sees neither `use_ema` nor `loss_scale_factor`: `fit` does not end with the average, and
    does not scale the loss.
    """

    _never_called: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            (
                *("update_step", "backend_update_step", "build", "apply", "apply_gradients"),
                *("stateless_apply", "save_own_variables", "load_own_variables"),
            ),
            "define `transformation`, which returns an optax transformation: it makes the slots and takes the steps",
        ),
        "finalize_variable_values": "override `finalize(state, params)`",
    }

    needs_params: ClassVar[bool] = False
    name: str

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
        self._arguments.pop("mesh", None)  # no config mentions it
        check_is_mesh(mesh)
        self._mesh = mesh
        check_known(type(self), unknown)
        check_rate(learning_rate)
        clips = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
        check_clips(clips)
        check_optional(check_number, "weight_decay", weight_decay)
        check_optional(check_number, "loss_scale_factor", loss_scale_factor, above=0)
        wrong, steps = "is no count of steps", gradient_accumulation_steps
        check_optional(check_int, "gradient_accumulation_steps", steps, 2, wrong=wrong)
        check_number("ema_momentum", ema_momentum, 0, 1)
        check_optional(check_int, "ema_overwrite_frequency", ema_overwrite_frequency, 1, wrong=wrong)
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
        """Return the rule of this optimizer: from gradients to what is added to the weights.

        Its `update` is given `learning_rate`, a scalar, by keyword; `optax.chain(..., scale_by_rate())` takes it.
        """
        summary = f"the optimizer {type(self).__name__} defines no `transformation`"
        fix = "for example return optax.chain(optax.scale_by_sign(), optimizers.scale_by_rate())"
        raise ModelError(summary, given=f"{type(self).__name__} without a method `transformation`", fix=fix)

    def init(self, params: PyTree) -> LearningRateState | ScheduledRateState:
        """Return the state before the first step.

        Args:
            params: the weights, as any pytree.
        """
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
        """Return what is to be added to the weights, and the state afterwards.

        Args:
            updates: the gradients.
            state: before the step.
            params: the weights; some optimizers do not need them.
            **extra: handed on to `transformation`, but for `batch_weight`: how much the gradients count among those
                that are accumulated, 1 by default.

        Raises:
            ModelError: the weights are missing.
        """
        self._check_params(params)
        rate, before = state
        if callable(self._rate):
            rate = rate_after(self._rate, before.iterations)  # which may have been set
        extra["learning_rate"] = rate
        weight = extra.pop("batch_weight", 1.0)
        updates = self._unscaled(updates)
        if self.gradient_accumulation_steps is None:
            steps, slots = self._step(updates, before.slots, params, extra)
            accumulated = before.accumulated, before.batch_weight
        else:
            steps, slots, *accumulated = self._accumulate(updates, weight, before, params, extra)
        average = before.average
        if self.use_ema:
            steps, average = self._average(steps, before, params)
        iterations = jnp.asarray(optax.safe_increment(before.iterations))
        if callable(self._rate):
            rate = rate_after(self._rate, iterations)
        return steps, type(state)(rate, OptimizerState(iterations, slots, average, *accumulated))

    def squared_norm(self, updates: PyTree, state: PyTree, batch_weight: ArrayLike = 1.0) -> tuple[Any, Any]:
        """Return the squared global norm of the gradient that `update` steps along, and whether it takes a step.

        The gradient is unscaled, is the mean of accumulated ones, and is not clipped.

        Args:
            updates: the gradients.
            state: before the step.
            batch_weight: as in `update`.
        """
        _, before = state
        grads, is_due = self._unscaled(updates), True
        if self.gradient_accumulation_steps is not None:
            sums = add_batch(grads, batch_weight, before.accumulated, before.batch_weight)
            grads, is_due = mean_gradient(*sums), (before.iterations + 1) % self.gradient_accumulation_steps == 0
        return squared_norm_of(grads), is_due

    def rate_of_step(self, before: PyTree, after: PyTree) -> Any:
        """Return the learning rate of a step, a scalar.

        Args:
            before: the state before it.
            after: the state after it.
        """
        del after
        return rate_after(self._rate, before.inner.iterations) if callable(self._rate) else before.learning_rate

    def finalize(self, state: PyTree, params: PyTree) -> PyTree:
        """Return the weights that training ends with: their average with `use_ema`, else `params`.

        Args:
            state: after the last step.
            params: the weights after it.

        Source: `keras.optimizers.Optimizer.finalize_variable_values`.
        """
        if not self.use_ema:
            return params
        return optax.tree.where(state.inner.iterations > 0, state.inner.average, params)

    def averaged(self) -> list[tuple[Any, Any]]:
        """The variables whose averages are kept, each with the variable of its average; none without `use_ema`."""
        if not self.use_ema or self._state is None:
            return []
        flat = traverse_util.flatten_dict(dict(self._state.inner.average))
        if self._holder is None:
            return list(zip(self._trained, flat.values(), strict=True))
        pairs = zip(self._holder.trained, self._holder.parts, strict=True)
        return [(variable, flat[parts]) for variable, parts in pairs if parts in flat]

    def scale_loss(self, loss: ArrayLike, state: PyTree = None) -> ArrayLike:
        """Return the loss times its scale, of which gradients are taken, for custom training steps.

        Args:
            loss: of the batch.
            state: of this optimizer, for those that adapt the scale.
        """
        del state
        self._has_scaled = True
        return loss if self.loss_scale_factor is None else loss * self.loss_scale_factor

    @property
    def scales_loss(self) -> bool:
        """Whether it divides gradients, which must be those of `scale_loss(loss)`."""
        return self.loss_scale_factor is not None

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments, with the current learning rate unless it follows a schedule."""
        given = self._arguments
        rate = self._current_rate()
        if "learning_rate" not in given or callable(rate) or np.float32(given["learning_rate"]) == np.float32(rate):
            return given
        return {**given, "learning_rate": rate}

    def __getstate__(self) -> dict[str, Any]:
        """Copies keep the current rate, and know excluded variables by their paths."""
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
        """Clip, decay, and the step of `transformation`."""
        decayed = self._decay(params, extra["learning_rate"])
        steps, slots = optax.with_extra_args_support(self.transformation()).update(
            self._clip(grads), slots, decayed, **extra
        )
        if params is not None:
            steps = jax.tree.map(lambda s, d, p: s if d is p else s + (d - p), steps, decayed, params)
        return jax.tree.map(lambda s, g: s.astype(g.dtype), steps, grads), slots

    def _unscaled(self, grads: PyTree) -> PyTree:
        factor = self.loss_scale_factor
        return grads if factor is None else jax.tree.map(lambda g: g / factor, grads)

    def _clip(self, grads: PyTree) -> Any:
        if self.clipnorm is not None:
            return jax.tree.map(lambda g: _shortened(g, self.clipnorm), grads)
        if self.global_clipnorm is not None:
            return _shortened(grads, self.global_clipnorm)
        if self.clipvalue is not None:
            return optax.tree.clip(grads, -self.clipvalue, self.clipvalue)
        return grads

    def _accumulate(
        self, grads: PyTree, weight: Any, before: OptimizerState, params: PyTree, extra: dict[str, Any]
    ) -> tuple[Any, Any, Any, Any]:
        """A step along the weighted mean of the gradients when enough have come, and none until then."""
        count = self.gradient_accumulation_steps or 1
        total: Any = before.batch_weight
        sums, weights = add_batch(grads, weight, before.accumulated, total)

        def step() -> tuple[Any, Any, Any, Any]:
            return (
                *self._step(mean_gradient(sums, weights), before.slots, params, extra),
                optax.tree.zeros_like(sums),
                jnp.zeros_like(weights),
            )

        def wait() -> tuple[Any, Any, Any, Any]:
            return optax.tree.zeros_like(sums), before.slots, sums, weights

        return jax.lax.cond((before.iterations + 1) % count == 0, step, wait)

    def _average(self, steps: Any, before: OptimizerState, params: PyTree) -> tuple[PyTree, PyTree]:
        """The average with the weights after the step in it, and the step that leads to it when it is time."""
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
    """`grads`, scaled down to a norm of `longest` where they are longer."""
    norm = optax.tree.norm(grads)
    return jax.tree.map(lambda g: (g * (longest / jnp.maximum(norm, longest))).astype(g.dtype), grads)
