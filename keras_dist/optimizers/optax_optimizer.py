"""`OptaxOptimizer`: an optax transformation as the optimizer of a model; accumulation of gradients over batches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax

from keras_dist._support.arguments import check_int, check_optional
from keras_dist._support.dim_names import DimNames, leading_by_path
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ConfigError, ModelError, with_type
from keras_dist.optimizers.custom_loops import CustomLoops
from keras_dist.optimizers.optimizer_variables import has_rate

_SPECIAL_STATES = (
    optax.LookaheadState,
    optax.MultiStepsState,
    optax.ApplyEvery,
    optax.contrib.DifferentiallyPrivateAggregateState,
)
_OF_THE_LOSS = ("value", "grad", "value_fn", "obj_fn", "grad_fn")  # of transformations that need the loss, as lbfgs


class AccumulationState(NamedTuple):
    """The state of a transformation whose gradients are accumulated."""

    iterations: jax.Array  # int32: number of batches
    slots: PyTree  # state of the transformation, which counts updates
    accumulated: PyTree  # sums of gradients
    batch_weight: jax.Array  # float32: sum of the weights of these batches


class OptaxOptimizer(CustomLoops):
    """An optax transformation with the variables of an optimizer, as `compile(optax.adam(1e-3))` creates it.

    Args:
        transformation: an optax transformation.
        name: the name among the model's optimizers.
        gradient_accumulation_steps: number of batches whose mean gradient makes one update. In `fit` each batch is
            weighted by the divisor of its loss (rows, or the sum of token weights), so that the update equals the
            update of one large batch. The state of the transformation and its schedules count updates.

    Raises:
        ModelError: `gradient_accumulation_steps` is not an integer of at least 2, or `transformation` is not of optax.

    Example:
        >>> import keras_dist as kd
        >>> import optax
        >>> chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100)))
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile(kd.optimizers.OptaxOptimizer(chain, gradient_accumulation_steps=4), loss="mse")
    """

    def __init__(
        self,
        transformation: optax.GradientTransformation,
        name: str = "optimizer",
        gradient_accumulation_steps: int | None = None,
    ) -> None:
        if not (callable(getattr(transformation, "init", None)) and callable(getattr(transformation, "update", None))):
            summary = "`transformation` must be an optax transformation"
            fix = "for example OptaxOptimizer(optax.adam(1e-3))"
            raise ModelError(summary, given=with_type(transformation), fix=fix)
        check_optional(check_int, "gradient_accumulation_steps", gradient_accumulation_steps, 2)
        self.transformation = optax.with_extra_args_support(transformation)
        self.name = name
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self._warned: set[str] = set()

    def init(self, params: PyTree) -> PyTree:
        """Return the state before the first step."""
        slots = self.transformation.init(params)
        kinds = {type(node) for node in jax.tree.leaves(slots, is_leaf=lambda node: isinstance(node, _SPECIAL_STATES))}
        if optax.LookaheadState in kinds:
            fix = "an average of the weights, as in Adam(use_ema=True)"
            raise ModelError(f"optimizer {self.name!r} needs pairs of weights", given="optax.lookahead", fix=fix)
        if optax.contrib.DifferentiallyPrivateAggregateState in kinds:
            summary = f"optimizer {self.name!r} needs the gradient of each example"
            given = "optax.contrib.differentially_private_aggregate, or dpsgd"
            raise ModelError(summary, given=given, fix="pass jax.vmap(jax.grad(...)) to it in a loop of your own")
        if kinds & {optax.MultiStepsState, optax.ApplyEvery}:
            self._warn_once(
                "weights all batches alike: its updates differ from one large batch where rows or tokens differ",
                given="optax.MultiSteps or optax.apply_every",
                fix="OptaxOptimizer(transformation, gradient_accumulation_steps=4), without these",
            )
        if self.gradient_accumulation_steps is None:
            return slots
        zero = jnp.zeros((), jnp.int32)
        return AccumulationState(zero, slots, optax.tree.zeros_like(params), jnp.zeros((), jnp.float32))

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        """Return the updates of the weights, and the new state.

        Args:
            updates: the gradients.
            state: the state before the step.
            params: the weights.
            **extra: passed to the transformation if it takes them, except `batch_weight`, the weight of accumulated
                gradients. From `value_fn`, the loss as a function of the weights, follow `obj_fn` and `grad_fn`.

        Raises:
            ModelError: the transformation needs the loss, and gradients are accumulated.
        """
        weight = extra.pop("batch_weight", 1.0)
        extra.pop("placements", None)  # for optimizers of matrices
        if (loss := extra.get("value_fn")) is not None:
            extra |= {"obj_fn": loss, "grad_fn": lambda params, _: jax.grad(loss)(params)}  # of sophia, of sam
        if self.gradient_accumulation_steps is None:
            return self._updated(updates, state, params, extra)
        # the loss of the large batch is unknown
        extra = {name: value for name, value in extra.items() if name not in _OF_THE_LOSS}
        iterations = jnp.asarray(optax.safe_increment(state.iterations))

        def step(grads: PyTree) -> tuple[PyTree, PyTree]:
            steps, slots = self._updated_slots(grads, state.slots, params, extra)
            return jax.tree.map(lambda s, g: s.astype(g.dtype), steps, grads), slots

        before = state.slots, state.accumulated, state.batch_weight
        steps, *after = accumulate(step, updates, weight, before, self._is_due(state))
        return steps, AccumulationState(iterations, *after)

    def know_dims(self, dim_names: Mapping[str, DimNames]) -> None:
        """Warn if weights are stacks of layers, and the transformation does not treat their slices as weights."""
        super().know_dims(dim_names)
        stacks = leading_by_path(dim_names)
        if stacks and not _keeps_slices_apart(self.transformation):
            self._warn_once(
                "may treat a stack of layers as one weight",
                given=f"an optax transformation, and stacks such as {min(stacks)!r}",
                fix="an optimizer of keras_dist.optimizers, or layers that are not stacked (scan=False)",
            )

    def _warn_once(self, problem: str, given: str, fix: str) -> None:
        """Issue a warning that names the optimizer, once for each problem."""
        if problem not in self._warned:
            self._warned.add(problem)
            warn(f"optimizer {self.name!r} {problem}\n  given:    {given}\n  fix:      {fix}")

    def squared_norm(self, updates: PyTree, state: PyTree, batch_weight: ArrayLike = 1.0) -> tuple[Any, Any]:
        """Return the squared norm of the gradient of a step; see `Optimizer.squared_norm`."""
        if self.gradient_accumulation_steps is None:
            return squared_norm_of(updates), True
        sums = add_batch(updates, batch_weight, state.accumulated, state.batch_weight)
        return squared_norm_of(mean_gradient(*sums)), self._is_due(state)

    def rate_of_step(self, before: PyTree, after: PyTree) -> Any:
        """Return the learning rate of a step, if the state has exactly one."""
        nodes = [node for node in jax.tree.leaves(after, is_leaf=_has_hyperparams) if _has_hyperparams(node)]
        rates = [node.hyperparams["learning_rate"] for node in nodes]
        rates = rates or [node.learning_rate for node in jax.tree.leaves(before, is_leaf=has_rate) if has_rate(node)]
        if len(rates) == 1:
            return rates[0]
        given = "an optax transformation without a learning rate in its state, or with several"
        fix = "optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3), or a schedule as its learning_rate"
        raise ModelError(f"the learning rate of optimizer {self.name!r} is unknown", given=given, fix=fix)

    def _is_due(self, state: AccumulationState) -> Any:
        return (state.iterations + 1) % (self.gradient_accumulation_steps or 1) == 0

    def _updated(self, grads: PyTree, slots: PyTree, params: PyTree, extra: dict[str, Any]) -> tuple[PyTree, PyTree]:
        """Update without the arguments that a transformation in a chain, such as sam, does not take."""
        try:
            return self.transformation.update(grads, slots, params, **extra)
        except TypeError as error:
            kept = {name: value for name, value in extra.items() if f"'{name}'" not in str(error)}
            if len(kept) == len(extra) or "nexpected keyword argument" not in str(error):
                raise
        return self._updated(grads, slots, params, kept)

    def _updated_slots(self, grads: PyTree, slots: PyTree, params: PyTree, extra: Any) -> tuple[PyTree, PyTree]:
        try:
            return self._updated(grads, slots, params, extra)
        except (TypeError, ValueError) as error:  # missing argument 'value', obj_fn must be provided
            if not any(f"'{name}'" in str(error) or f"{name} must" in str(error) for name in _OF_THE_LOSS):
                raise
            summary = f"optimizer {self.name!r} needs the loss, and cannot accumulate gradients"
            given = f"gradient_accumulation_steps={self.gradient_accumulation_steps}: {error}"
            fix = "leave out gradient_accumulation_steps, and make batch_size larger"
            raise ModelError(summary, given=given, fix=fix) from error

    def get_config(self) -> NoReturn:
        """Raise a ConfigError, because the arguments of optax transformations are unknown."""
        fix = "use an optimizer by name, or one of keras_dist.optimizers"
        raise ConfigError(f"optimizer {self.name!r} has no config", given="an optax transformation", fix=fix)

    def __eq__(self, other: object) -> bool:
        """Compare by the transformation; `compile` keeps the slots of an equal optimizer."""
        return isinstance(other, OptaxOptimizer) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.transformation, self.gradient_accumulation_steps

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _begin_with(self, rate: Any) -> None:
        """Do nothing: the transformation has its initial rate."""

    @property
    def _rate(self) -> Any:  # type: ignore[override]
        self._check_built("learning_rate")
        return None


def _keeps_slices_apart(transformation: optax.GradientTransformationExtraArgs) -> bool:
    """Return whether steps on stacked weights equal the steps on their slices; False if they fail."""
    rng = np.random.default_rng(0)
    scales = np.array([[1], [100]], "float32")  # of the slices
    draws = (rng.normal(size=(13, 2, 16)).astype("float32") * scales for _ in range(2))  # some take every 4th or 10th
    weights, *grads = ({"kernel": k.reshape(2, 4, 4), "bias": b} for k, b in zip(*draws, strict=True))
    step = jax.jit(transformation.update)

    def steps(weights: PyTree, grads: list[PyTree]) -> PyTree:
        state, updates = jax.jit(transformation.init)(weights), []
        for each in grads:
            update, state = step(each, state, weights)
            updates.append(update)
        return updates

    def apart(tree: PyTree) -> PyTree:
        return {name: jax.tree.map(operator.itemgetter(place), tree) for place, name in enumerate("01")}

    try:
        together = [apart(update) for update in steps(weights, grads)]
        alone = steps(apart(weights), [apart(each) for each in grads])
        pairs = zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True)
        return all(np.allclose(one, other, rtol=1e-3, atol=1e-3 * np.abs(one).max()) for one, other in pairs)
    except Exception:  # code of others: masks for the weights of one model, line searches
        return False


def _has_hyperparams(node: Any) -> bool:
    """Whether `node` is a state of `optax.inject_hyperparams` with a learning rate."""
    hyperparams = getattr(node, "hyperparams", None)
    return isinstance(hyperparams, Mapping) and "learning_rate" in hyperparams


def add_batch(grads: PyTree, weight: ArrayLike, sums: PyTree, weights: ArrayLike) -> tuple[PyTree, jax.Array]:
    """Add a batch to the sums of weighted gradients and of weights."""
    return jax.tree.map(lambda total, g: total + (g * weight).astype(g.dtype), sums, grads), jnp.add(weights, weight)


def accumulate(
    step: Callable[[PyTree], tuple[PyTree, PyTree]],
    grads: PyTree,
    weight: Any,
    before: tuple[Any, Any, Any],
    is_due: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return updates, slots, sums and weights after a batch: `step(mean gradient)` if `is_due`, else zero updates."""
    slots, *sums = before
    sums, weights = add_batch(grads, weight, *sums)

    def take() -> tuple[Any, Any, Any, Any]:
        return (*step(mean_gradient(sums, weights)), optax.tree.zeros_like(sums), jnp.zeros_like(weights))

    def wait() -> tuple[Any, Any, Any, Any]:
        return optax.tree.zeros_like(sums), slots, sums, weights

    return jax.lax.cond(is_due, take, wait)


def mean_gradient(sums: PyTree, weights: jax.Array) -> PyTree:
    """Return the weighted mean of gradients, or zeros for a weight of 0."""
    whole = jnp.where(weights == 0, 1, weights)
    return jax.tree.map(lambda total: (total / whole).astype(total.dtype), sums)


def squared_norm_of(grads: PyTree) -> Any:
    """Return the squared global norm of gradients, a float32 scalar."""
    squares = [jnp.sum(jnp.square(jnp.abs(g).astype(jnp.float32))) for g in jax.tree.leaves(grads)]
    return sum(squares, jnp.zeros((), jnp.float32))
