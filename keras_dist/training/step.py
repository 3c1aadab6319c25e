"""The train, test and predict steps as pure functions, and how their logs are accumulated.

A batch that the mesh does not divide is padded, placed evenly, and sliced back to its true length inside the step. That
is exact for every module and loss, also for foreign BatchNorm, and costs one program for each length. Gradients take
the layout of the parameter and then that of its slots: Shardy otherwise gathers Adam's arrays of replicated biases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from keras_dist._support import tree_paths
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.distribution import trace_context
from keras_dist.distribution.pipelining import pipelining
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.layers import Layer
from keras_dist.layers.base.module_precision import cast_floats, compute_under
from keras_dist.layers.core.row_table import Lookups
from keras_dist.losses.loss import split_reported
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.optimizers.whole_matrices import Placement
from keras_dist.training import rowwise
from keras_dist.training.accumulators import (
    Accumulator,
    Count,
    Latest,
    Observation,
    OpenMean,
    accumulator_of,
    add,
    flat_logs,
)
from keras_dist.training.activations import Remat, constrain_inputs, constrain_outputs, weight_scope
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.gathers import with_gathers
from keras_dist.training.graph import ModuleGraph
from keras_dist.training.lora_modules import adapted
from keras_dist.training.objective import Batch, Objective, check_free, reported
from keras_dist.training.optimization import (
    Optimizer,
    TrainState,
    apply_gradients,
    check_loss_scales,
    joined,
    scale_loss,
    scaling_checked,
)
from keras_dist.training.rowwise import Tables
from keras_dist.training.uneven_rows import check_have_rows, over_padded_rows, rows_multiple
from keras_dist.variables import call_context

TrainStep = Callable[[TrainState, Batch, nnx.Rngs], tuple[TrainState, dict[str, Any]]]
"""`train_step(state, batch, rngs) -> (state, logs)`, as users write it."""

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]  # `step(state, batch) -> (state, logs)`
ModuleCall = Callable[[Any, Any, bool, nnx.Rngs], Any]  # `call(module, x, training, rngs) -> y_pred`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draw:
    """The position of random numbers of a batch outside of training."""

    words: Any  # [seed, number of the evaluation or prediction, batch], uint32 (3,)

    @classmethod
    def begun(cls, seed: int, run: int) -> Self:
        """Return the position of the first batch."""
        return cls(np.array([seed, run, 0], np.uint32))

    def after(self, batches: int) -> Self:
        """Return the position `batches` batches later."""
        return type(self)(self.words + np.array([0, 0, batches], np.uint32))

    def key(self) -> jax.Array:
        """Return the key of the batch (traced), distinct from all keys of training steps."""
        key = jax.random.fold_in(jax.random.key(self.words[0]), _OUTSIDE_OF_TRAINING)
        return jax.random.fold_in(jax.random.fold_in(key, self.words[1]), self.words[2])


_OUTSIDE_OF_TRAINING = 2**32 - 1  # no training step has this number


@dataclasses.dataclass(eq=False, kw_only=True)
class Forward:
    """The call of a module, with the layouts of its inputs and activations."""

    graph: ModuleGraph
    distribution: Distribution
    call: ModuleCall | None = None  # None for `module(x)`, which draws from its own streams
    seed: int  # of the `rngs` of every step, a constant of traced programs
    # compute_loss(module, batch, y_pred, training) -> scalar or (scalar, {"name": scalar}); it may call the
    # `compiled_loss` of the call context. None for the loss of the objective
    compute_loss: Callable[[Any, Batch, Any, bool], jax.Array] | None = None
    remat: Remat | None = None
    plan: LayoutPlan | None = None  # None: XLA chooses when variables are gathered
    precision: DTypePolicy | None = None  # a mixed policy for a foreign module; layers cast themselves
    pads: bool = False  # the module is called with padded rows, which are cut off its outputs
    micro_batches: int | None = None  # parts of a batch in pipelines; None: no layers are pipelined
    tables: Tables = frozenset()  # names of tables that are only looked up

    def __call__(self, trainable: Any, rest: Any, at: ArrayLike | Draw, x: Any, training: bool) -> tuple[Any, Any]:
        """Return the output for `x`, and `rest` afterwards; see `rngs` for `at`."""

        def call(trainable: PyTree, rest: PyTree) -> tuple[PyTree, PyTree]:
            module = self.module(trainable, rest)
            with call_context.entered(training, anew=True):
                y_pred, _ = self.outputs(module, at, x, training)
            return y_pred, self.graph.split(module)[1]

        return self.gathering(call, trainable, rest, x)

    def measure(
        self,
        objective: Objective,
        state: TrainState,
        trainable: Any,
        batch: Batch,
        draw: Draw | None = None,
        lookups: Lookups | None = None,
    ) -> tuple[dict[str, jax.Array], PyTree, PyTree, PyTree]:
        """Return losses, output, mask, and `rest` afterwards, for a batch; a `draw` means outside of training."""
        training, at = draw is None, state.step if draw is None else draw

        def call(trainable: PyTree, rest: PyTree) -> tuple[Any, ...]:
            module = self.module(trainable, rest, lookups)
            if training and self.remat is not None:
                self.remat.mark(module)
            with call_context.entered(training, anew=True) as context:
                context.shards_of = self._shards_of
                y_pred, has_rows = self.outputs(module, at, batch[0], training)
                mask = context.mask_of(y_pred)
                mask = mask if jax.tree.leaves(mask) else None
                losses: dict[str, jax.Array] = {}

                def compiled_loss(batch: Batch, of: PyTree) -> jax.Array | None:
                    is_alike = jax.tree.structure(of) == jax.tree.structure(y_pred)
                    losses.update(objective.losses(batch, of, mask if is_alike else None))
                    return losses.get("loss")

                if self.compute_loss is None:
                    if has_rows is not None:
                        check_have_rows(y_pred, has_rows, objective.measured(batch, y_pred, mask))
                    compiled_loss(batch, y_pred)
                else:  # a subclass may split outputs, or need none of the losses
                    context.compiled_loss = compiled_loss
                    loss, beside = split_reported(self.compute_loss(module, batch, y_pred, training))
                    losses["loss"] = check_scalar(loss)
                    check_free(losses, beside)
                    losses.update(beside)
            return losses, y_pred, mask, self.graph.split(module)[1], [] if lookups is None else lookups.indices

        *found, indices = self.gathering(call, trainable, state.rest, batch)
        if lookups is not None:
            lookups.indices = indices
        return tuple(found)

    def in_evaluation(self, run: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Return `program(trainable, rest, *operands)`: `run(module, *operands)` of the module in evaluation mode."""

        def program(trainable: PyTree, rest: PyTree, *operands: PyTree) -> PyTree:
            def call(trainable: PyTree, rest: PyTree) -> PyTree:
                module = self.module(trainable, rest)
                if not isinstance(module, Layer):
                    module.eval()
                with call_context.entered(False, anew=True) as context:
                    context.shards_of = self._shards_of
                    return run(module, *operands)

            trace = functools.partial(self.gathering, call, trainable, rest, operands)
            return traced_in(self.distribution, None, trace, (trainable, rest, operands))

        return program

    def gathering(self, call: Callable[[Any, Any], Any], trainable: PyTree, rest: PyTree, batch: PyTree) -> Any:
        """Call `call(trainable, rest)` with variables gathered where they are used (traced)."""
        if self.plan is None or not any(map(is_traced, jax.tree.leaves(batch))):
            return call(trainable, rest)
        paths = self.graph.nest([spec.path for spec in self.graph.specs])
        with pipelining(self.plan, self.distribution.batch_dim_name, self.micro_batches):
            return with_gathers(call, self.plan, jax.tree.leaves(paths), (trainable, rest))

    def _shards_of(self, path: str, dim: int) -> int | None:
        """Return the number of shards of a dim of a weight where it is used; None if the plan lacks the weight."""
        if self.plan is None:
            return None
        try:
            return self.plan.mesh.axis_size(self.plan.row(path).compute_axes[dim])
        except KeyError:
            return None

    def scattered(self, grads: PyTree) -> PyTree:
        """Constrain gradients to the layouts of the slots that they update (traced)."""
        if self.plan is None:
            return grads
        paths = dict(zip(self.graph.parts, (spec.path for spec in self.graph.specs), strict=True))
        mesh = self.plan.mesh.backend_mesh
        flat: dict[Any, Any] = dict(traverse_util.flatten_dict(grads))
        for parts, gradient in flat.items():
            if parts in paths and is_traced(gradient):
                row = self.plan.row(paths[parts])
                # as the parameter first: else the backward pass may be split as the slots are
                for axes in dict.fromkeys((row.axes, row.slot_axes)):
                    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
                    with weight_scope(row.path):
                        gradient = jax.lax.with_sharding_constraint(gradient, sharding)
                flat[parts] = gradient
        return traverse_util.unflatten_dict(flat)

    def placements(self) -> dict[str, Placement]:
        """Return where `scattered` gradients are, and where the steps of weights are needed, by their paths."""
        if self.plan is None:
            return {}
        pairs = zip(self.graph.parts, (self.plan.row(spec.path) for spec in self.graph.specs), strict=True)
        mesh = self.plan.mesh.backend_mesh
        if not trace_context.current().may_use_kernels:  # of a step that is traced to find layouts
            return {tree_paths.join(parts): Placement(mesh, None, None) for parts in self.graph.parts}
        return {tree_paths.join(parts): Placement(mesh, row.slot_axes, row.axes) for parts, row in pairs}

    def module(self, trainable: PyTree, rest: PyTree, lookups: Lookups | None = None) -> Any:
        """Return the module with these values; its submodules constrain their outputs by the layout rules."""
        if self.tables and self.plan is not None:
            trainable = rowwise.in_row_tables(self, self.plan, trainable, lookups)
        module = self.graph.merge(trainable, rest)
        constrain_outputs(module, self.distribution)
        return module

    def outputs(self, module: Any, at: ArrayLike | Draw, x: PyTree, training: bool) -> tuple[PyTree, PyTree | None]:
        """Return the outputs of the module for `x`; if the module gets padded rows, also which outputs have rows."""

        def call(module: Any, x: PyTree) -> PyTree:
            return self.run(module, at, constrain_inputs(x, self.distribution), training)

        def call_copy(x: PyTree) -> PyTree:
            with call_context.entered(training, anew=True):
                return call(self.module(*self.graph.split(module)), x)

        return self.with_padding(functools.partial(call, module), x, x, call_copy)

    def with_padding(
        self, call: Callable[[Any], PyTree], arguments: Any, x: PyTree, call_copy: Callable[[Any], PyTree]
    ) -> tuple[PyTree, PyTree | None]:
        """Return the outputs of `call(arguments)`, padded where the mesh does not divide `x`, and which have rows."""
        if not self.pads:
            return call(arguments), None
        return over_padded_rows(call, arguments, rows_multiple(x, self.distribution), self.distribution, call_copy)

    def run(self, module: Any, at: ArrayLike | Draw, x: PyTree, training: bool) -> PyTree:
        """Return the outputs for `x` in training or evaluation mode; floats are float32 under a mixed policy."""
        with adapted(module, self.plan) if self.graph.is_foreign else contextlib.nullcontext():
            if self.precision is None:
                return self._run(module, at, x, training)
            inputs = cast_floats(x, self.precision.compute_dtype)
            outputs = compute_under(self.precision, module, lambda: self._run(module, at, inputs, training))
            return cast_floats(outputs, self.precision.variable_dtype)

    def _run(self, module: Any, at: ArrayLike | Draw, x: PyTree, training: bool) -> PyTree:
        if self.call is not None:
            return self.call(module, x, training, self.rngs(at))
        if isinstance(module, Layer):
            return module(x, training=training)
        if training:
            module.train()
        else:
            module.eval()
        return module(x)

    def rngs(self, at: ArrayLike | Draw) -> nnx.Rngs:
        """Return the random streams of a batch: of a `Draw` outside of training, or of a step by its number."""
        return nnx.Rngs(at.key() if isinstance(at, Draw) else jax.random.fold_in(jax.random.key(self.seed), at))


def make_train_step(
    forward: Forward, objective: Objective, optimizers: Mapping[str, Optimizer], report: Collection[str] = ()
) -> Step:
    """Make the step of gradient descent on the mean loss of a batch; it also logs the values in `report`."""
    check_loss_scales(optimizers)
    accumulates = any(getattr(one.transformation, "gradient_accumulation_steps", None) for one in optimizers.values())
    if accumulates:
        _check_updates_each_batch(forward, "gradient_accumulation_steps")
    if any(getattr(one.transformation, "use_ema", False) for one in optimizers.values()):
        _check_updates_each_batch(forward, "use_ema")
    gradients = rowwise.gradients if forward.tables else _gradients

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        def loss_of(trainable: PyTree, lookups: Lookups | None = None) -> tuple[jax.Array, Sequence[PyTree]]:
            trainable = joined(state.trainable, trainable)
            found = forward.measure(objective, state, trainable, batch, lookups=lookups)
            return scale_loss(optimizers, found[0]["loss"], state.slots), found

        (losses, y_pred, mask, rest), grads, before, written = gradients(forward, optimizers, state, loss_of)
        batch_weight = objective.batch_weight(batch, y_pred, mask) if accumulates else None
        new = apply_gradients(
            before,
            optimizers,
            grads,
            value=losses["loss"],
            value_fn=lambda trainable: loss_of(trainable)[1][0]["loss"],
            batch_weight=batch_weight,
            placements=forward.placements(),
        )
        extra = reported(report, objective, optimizers, (before, new), grads, batch, (y_pred, mask), batch_weight)
        new = written(new)
        trainable, rest = forward.graph.updated(new.trainable, rest)
        new = new.replace(trainable=trainable, rest=rest)
        logs = objective.logs(losses, batch, y_pred, mask)
        check_free(logs, extra)
        return new, {**logs, **extra}

    return train_step


def _gradients(
    forward: Forward, optimizers: Mapping[str, Optimizer], state: TrainState, loss_of: Any
) -> rowwise.Gradients:
    """Differentiate whole variables; see `rowwise.gradients`."""
    differentiated = loss_of if forward.remat is None else forward.remat.whole(loss_of)
    (_, found), grads = jax.value_and_grad(differentiated, has_aux=True)(state.trainable)
    return found, forward.scattered(grads), state, lambda new: new


def _check_updates_each_batch(forward: Forward, argument: str) -> None:
    """Raise if layers change their weights after each batch, as attention with `qk_clip` does."""
    if forward.graph.has_hooks:
        summary = f"attention with qk_clip scales weights after the step of a batch, which `{argument}` does not know"
        raise ModelError(summary, given=f"{argument} and qk_clip", fix=f"leave out one of `{argument}` and `qk_clip`")


def own_train_step(forward: Forward, train_step: TrainStep, optimizers: Mapping[str, Optimizer]) -> Step:
    """Make a train step from a user function; each step gets its random streams."""
    _check_updates_each_batch(forward, "train_step")

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        with scaling_checked(one.transformation for one in optimizers.values()):
            return train_step(state, batch, forward.rngs(state.step))

    return step


def make_test_step(
    forward: Forward, objective: Objective
) -> Callable[[TrainState, Batch, Draw], tuple[TrainState, dict[str, Any]]]:
    """Make the step that returns the state afterwards, loss and metrics of a batch."""

    def test_step(state: TrainState, batch: Batch, draw: Draw) -> tuple[TrainState, dict[str, Any]]:
        losses, y_pred, mask, rest = forward.measure(objective, state, state.trainable, batch, draw)
        return state.replace(rest=rest), objective.logs(losses, batch, y_pred, mask)

    return test_step


def make_predict_step(forward: Forward) -> Callable[[TrainState, PyTree, Draw], tuple[TrainState, PyTree]]:
    """Make the step that returns the state afterwards, and the outputs for a batch of inputs."""

    def predict_step(state: TrainState, x: PyTree, draw: Draw) -> tuple[TrainState, PyTree]:
        outputs, rest = forward(state.trainable, state.rest, draw, x, False)
        return state.replace(rest=rest), outputs

    return predict_step


def check_scalar(loss: Any) -> jax.Array:
    """Return the result of `compute_loss`; raise unless it is a scalar."""
    if not isinstance(loss, jax.Array | float | int) or jnp.shape(loss) != ():
        fix = 'for example jnp.mean(loss), or (loss, {"name": scalar})'
        raise ModelError("compute_loss did not return a scalar", given=with_type(loss), fix=fix)
    return jnp.asarray(loss)


def check_train_step(before: TrainState, returned: Any) -> tuple[TrainState, Mapping[str, Any]]:
    """Return the result of a train step; raise unless it is `(state, logs)` with a state like `before`."""
    after, logs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(after, TrainState) or not isinstance(logs, Mapping):
        given = f"{returned!r:.200} of type {type(returned).__name__}"
        fix = "return state.replace(...), {'loss': loss}"
        raise ModelError("train_step did not return (state, logs)", given=given, fix=fix)
    check_state("train_step", before, after)
    logs = flat_logs("train_step", logs)
    for name, value in logs.items():
        if not isinstance(value, Observation | OpenMean | Latest | Count) and not _is_scalar(value):
            summary = f"train_step logs {name!r}, which is not a scalar"
            given = f"shape {jnp.shape(value)}" if hasattr(value, "shape") else shorten(value)
            raise ModelError(summary, given=given, fix=f"for example jnp.mean({name})")
    return after, logs


def _is_scalar(value: Any) -> bool:
    try:
        return jnp.asarray(value).shape == ()
    except (TypeError, ValueError):
        return False


def check_state(step: str, before: TrainState, after: TrainState) -> None:
    """Check that a step changed only values of the state."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        summary = f"{step} returned a state of another structure"
        expected = f"{jax.tree.structure(before)}"
        fix = "change the values in the state, not its structure"
        raise ModelError(summary, given=f"{jax.tree.structure(after)}", expected=expected, fix=fix)
    leaves = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, old), new in leaves:
        if jnp.shape(old) != jnp.shape(new) or jnp.result_type(old) != jnp.result_type(new):
            raise ModelError(
                f"{step} changed the shape or dtype of {tree_paths.join(tree_paths.parts_of(path))!r}",
                given=f"{jnp.shape(new)} {jnp.result_type(new)}, before {jnp.shape(old)} {jnp.result_type(old)}",
                fix="return a value of the same shape and dtype, and each list in its order",
            )


Logs = dict[str, Any]  # the states of accumulators by name, on the device


class PureStep:
    """A train or test step that accumulates its logs: `step(state, batch)` or `step(state, batch, draw)`.

    `accumulators` finds `changed`: which of the `assignable` arrays a test step changes, by index in the state.
    """

    changed: Sequence[int] = ()
    may_read_values = False

    def __init__(self, step: Callable[..., Any], *, trains: bool, assignable: Collection[int] = ()) -> None:
        self._step, self._trains, self._assignable = step, trains, assignable

    def accumulators(self, state: TrainState, batch: Batch) -> dict[str, Accumulator]:
        """Return the accumulators in the order of the logs (traced); JAX would sort the names."""
        after, found = self._run(state, batch, Draw.begun(0, 0))
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
        changed = {index for index, (old, new) in enumerate(pairs) if new is not old}
        self.changed = sorted(changed.intersection(self._assignable))
        return {name: accumulator_of(name, value) for name, value in found.items()}

    def advance(
        self, state: TrainState, batch: Batch, logs: Logs, rows: int, draw: Draw | None
    ) -> tuple[TrainState, Logs]:
        """Return state and logs after a batch of `rows` real rows (traced)."""
        after, found = self._run(state, batch, draw)
        if set(found) != set(logs):
            summary = "train_step logs other names than before"
            fix = "return the same names from every step"
            raise ModelError(summary, given=f"{sorted(found)}", expected=f"{sorted(logs)}", fix=fix)
        return after, {name: add(value, found[name], rows) for name, value in logs.items()}

    def hold(self, metrics: ModelMetrics, accumulators: Mapping[str, Accumulator], logs: Logs) -> None:
        """Load these logs into the metric objects of the model."""
        metrics.hold(accumulators, logs)

    def _run(self, state: TrainState, batch: Batch, draw: Draw | None) -> tuple[TrainState, Mapping[str, Any]]:
        if self._trains:
            return check_train_step(state, self._step(state, batch))
        return self._step(state, batch, draw)
