"""`LossScaleOptimizer`: dynamic scaling of the loss for float16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import check_int, check_number
from keras_dist._support.array_operators import value_of
from keras_dist._support.dim_names import DimNames
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.optimizers.custom_loops import CustomLoops
from keras_dist.optimizers.optax_optimizer import OptaxOptimizer
from keras_dist.optimizers.optimizer import Optimizer


class LossScaleState(NamedTuple):
    """The scale of the next loss, and the state of the inner optimizer."""

    dynamic_scale: jax.Array  # float32
    step_counter: jax.Array  # int32: steps with finite gradients since the last change of the scale
    inner: PyTree


class LossScaleOptimizer(Optimizer):
    """An optimizer that scales the loss, so that small gradients do not vanish in float16.

    A step whose gradients are not finite is skipped and halves the scale. `dynamic_growth_steps` finite steps in a row
    double it. The scale is in the state, so that no step waits for the host. `compile` wraps the optimizer of a model
    under `"mixed_float16"` in one, unless `auto_scale_loss=False`.

    Args:
        inner_optimizer: an `Optimizer`, or an optax transformation. Its `loss_scale_factor` is ignored.
        initial_scale: the scale of the first step.
        dynamic_growth_steps: number of finite steps that double the scale.
        name: by default the name of the class in lower case.
        **kwargs: `dynamic=True`, and defaults of the arguments that all optimizers share; values belong to
            `inner_optimizer`.

    Raises:
        ModelError: an argument is unknown, out of range, or belongs to `inner_optimizer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import optimizers
        >>> optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.5), initial_scale=8.0)
        >>> state = optimizer.init({"w": jnp.ones(())})
        >>> float(optimizer.scale_loss(3.0, state))
        24.0
        >>> updates, state = optimizer.update({"w": jnp.asarray(jnp.inf)}, state, {"w": jnp.ones(())})
        >>> float(updates["w"]), float(state.dynamic_scale)
        (0.0, 4.0)
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_shared(kwargs, inner_optimizer)
        rate = inner_optimizer._rate if isinstance(inner_optimizer, Optimizer) else 0.0
        steps = getattr(inner_optimizer, "gradient_accumulation_steps", None)
        use_ema = getattr(inner_optimizer, "use_ema", False)
        super().__init__(rate, use_ema=use_ema, gradient_accumulation_steps=steps, name=name)
        self.inner_optimizer = inner_optimizer
        self.initial_scale = check_number("initial_scale", initial_scale, above=0)
        growth_steps = check_int("dynamic_growth_steps", dynamic_growth_steps, 1)
        self.dynamic_growth_steps = growth_steps

    def init(self, params: PyTree) -> LossScaleState:  # type: ignore[override]
        scale = jnp.asarray(self.initial_scale, jnp.float32)
        return LossScaleState(scale, jnp.zeros((), jnp.int32), self.inner_optimizer.init(params))

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        """Return the updates of the weights, zeros if a gradient is not finite, and the new state."""
        factor, inner = self._factor(state), self._taking_steps()

        def step() -> tuple[PyTree, LossScaleState]:
            grads = jax.tree.map(lambda g: (g * factor).astype(g.dtype), updates)
            given = {**extra, "grad": grads} if "grad" in extra else extra
            steps, after = inner.update(grads, state.inner, params, **given)
            grows = state.step_counter + 1 >= self.dynamic_growth_steps
            scale = jnp.where(grows, state.dynamic_scale * 2, state.dynamic_scale)
            return steps, LossScaleState(scale, jnp.where(grows, 0, state.step_counter + 1), after)

        def skip() -> tuple[PyTree, LossScaleState]:
            halved = LossScaleState(state.dynamic_scale / 2, jnp.zeros_like(state.step_counter), state.inner)
            return optax.tree.zeros_like(updates), halved

        return jax.lax.cond(_are_finite(updates), step, skip)

    def squared_norm(self, updates: PyTree, state: PyTree, batch_weight: ArrayLike = 1.0) -> tuple[Any, Any]:
        """Return the squared norm of the gradient of a step, and whether the step is taken."""
        factor = self._factor(state)
        grads = jax.tree.map(lambda g: (g * factor).astype(g.dtype), updates)
        squared, is_due = self._taking_steps().squared_norm(grads, state.inner, batch_weight)
        return squared, jnp.logical_and(_are_finite(updates), is_due)

    def rate_of_step(self, before: PyTree, after: PyTree) -> Any:
        """Return the learning rate of a step of the inner optimizer."""
        return self._taking_steps().rate_of_step(before.inner, after.inner)

    def _factor(self, state: PyTree) -> Any:
        """Return the factor that unscales gradients for the inner optimizer."""
        return (getattr(self.inner_optimizer, "loss_scale_factor", None) or 1.0) / state.dynamic_scale

    def _taking_steps(self) -> Optimizer | OptaxOptimizer:
        inner = self.inner_optimizer
        return inner if isinstance(inner, Optimizer | OptaxOptimizer) else OptaxOptimizer(inner, self.name)

    def finalize(self, state: PyTree, params: PyTree) -> PyTree:
        return self.inner_optimizer.finalize(state.inner, params) if self.use_ema else params

    def scale_loss(self, loss: ArrayLike, state: PyTree = None) -> ArrayLike:
        """Return the scaled loss, whose gradients `update` takes.

        Args:
            loss: the loss of the batch.
            state: the state of this optimizer; by default its variables, as in a `train_step` of Keras.

        Raises:
            ModelError: `state` is missing, and the optimizer is not built.
        """
        self._has_scaled = True
        if state is None and not self.built:
            fix = 'in a train_step: optimizer.scale_loss(loss, state.slots["optimizer"])'
            raise ModelError("scale_loss of a LossScaleOptimizer needs its state", given="scale_loss(loss)", fix=fix)
        return loss * value_of((self._state if state is None else state).dynamic_scale)

    @property
    def dynamic_scale(self) -> Any:
        """The scale of the next loss, as a variable.

        Raises:
            ModelError: the optimizer is not built.
        """
        self._check_built("dynamic_scale")
        return self._state.dynamic_scale

    @property
    def scales_loss(self) -> bool:
        """Whether `update` unscales gradients, which is always true."""
        return True

    def know_dims(self, dim_names: Mapping[str, DimNames]) -> None:
        self._taking_steps().know_dims(dim_names)

    def averaged(self) -> list[tuple[Any, Any]]:
        return self.inner_optimizer.averaged() if isinstance(self.inner_optimizer, Optimizer) else []

    def get_config(self) -> dict[str, Any]:
        """Return the inner optimizer and the other arguments as plain values."""
        names = ("inner_optimizer", "initial_scale", "dynamic_growth_steps", "name")
        return {name: value for name, value in super().get_config().items() if name in names}

    def _inner(self) -> dict[str, CustomLoops]:
        return {"inner": self.inner_optimizer} if isinstance(self.inner_optimizer, Optimizer) else {}

    def __eq__(self, other: object) -> bool:
        """Compare by the inner optimizer; `compile` keeps the slots of an equal optimizer."""
        return isinstance(other, LossScaleOptimizer) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return id(self.inner_optimizer), self.initial_scale, self.dynamic_growth_steps, self.name


def _are_finite(grads: PyTree) -> jax.Array:
    finite = [jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)] or [True]  # no trainable weights
    return jnp.all(jnp.array(finite))


_DEFAULTS = {"ema_momentum": 0.99}  # the defaults of shared arguments that are not None or False


def _check_shared(kwargs: dict[str, Any], inner_optimizer: Any) -> None:
    """Check that arguments of all optimizers are given to the inner optimizer."""
    if not callable(getattr(inner_optimizer, "update", None)):
        summary = "LossScaleOptimizer: `inner_optimizer` must be an Optimizer or an optax transformation"
        raise ModelError(summary, given=with_type(inner_optimizer), fix="for example LossScaleOptimizer(Adam(1e-3))")
    if kwargs.pop("dynamic", True) is not True:
        fix = "set `loss_scale_factor` of the optimizer in its place: Adam(loss_scale_factor=...)"
        raise ModelError("LossScaleOptimizer always changes its scale", given="dynamic=False", fix=fix)
    given = {name: value for name, value in kwargs.items() if value not in (None, False, _DEFAULTS.get(name))}
    if given:
        name, value = next(iter(given.items()))
        fix = f"give it to the inner optimizer: LossScaleOptimizer(Adam({name}=...))"
        raise ModelError(f"LossScaleOptimizer does not take {name!r}", given=f"{name}={shorten(value)}", fix=fix)


def with_loss_scale(optimizer: Any, policy: DTypePolicy) -> Any:
    """Wrap an optimizer in a `LossScaleOptimizer` for "mixed_float16"; several must have a `loss_scale_factor`."""
    if policy.name != "mixed_float16" or isinstance(optimizer, LossScaleOptimizer):
        return optimizer
    if not isinstance(optimizer, Mapping):
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    several = cast("Mapping[str, Any]", optimizer)
    optimizers: list[Any] = [entry[0] if isinstance(entry, tuple) else entry for entry in several.values()]
    if any(getattr(one, "loss_scale_factor", None) is None for one in optimizers):
        summary = "several optimizers cannot share a dynamic scale of the loss"
        fix = 'give them loss_scale_factor=1024.0, pass auto_scale_loss=False, or choose "mixed_bfloat16"'
        raise ModelError(summary, given=f'the optimizers {list(several)} under "mixed_float16"', fix=fix)
    return several
