"""The three steps as pure functions: train, test, predict. Here is the arithmetic of training, and no device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from keras_dist import _jax, _paths
from keras_dist._types import ArrayLike, PyTree
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError, shorten
from keras_dist.layers import Layer, call_context
from keras_dist.losses.reduction import split_reported
from keras_dist.training.accumulators import Count, Latest, Observation, UpdatesTotal
from keras_dist.training.activations import constrain_inputs, constrain_outputs, weight_scope
from keras_dist.training.gathers import with_gathers
from keras_dist.training.graph import ModuleGraph
from keras_dist.training.objective import Objective, check_free
from keras_dist.training.optimization import (
    Optimizer,
    accumulates,
    apply_gradients,
    check_loss_scales,
    scale_loss,
)
from keras_dist.training.rematerialisation import Remat
from keras_dist.training.report import reported
from keras_dist.training.train_state import TrainState

Batch = tuple[Any, Any, Any]
"""`(x, y, sample_weight)`; the latter two may be None."""

TrainStep = Callable[[TrainState, Batch, nnx.Rngs], tuple[TrainState, dict[str, Any]]]
"""`train_step(state, batch, rngs) -> (state, logs)`, as users write it."""

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
"""`step(state, batch) -> (state, logs)`."""

ModuleCall = Callable[[Any, Any, bool, nnx.Rngs], Any]
"""`call(module, x, training, rngs) -> y_pred`."""


@dataclasses.dataclass(eq=False)
class Forward:
    """The module, how it is called, and where its activations live.

    Attributes:
        graph: the module without its arrays.
        call: `call(module, x, training, rngs) -> y_pred`; None for `module(x)`, which draws from its own streams.
        distribution: gives the layouts of inputs and activations.
        seed: fixes the `rngs` of every step; programs that were traced with another one keep that.
        compute_loss: `compute_loss(module, batch, y_pred, training) -> scalar or (scalar, {"name": scalar})`, which may
            call the `compiled_loss` of the call context; None for the objective's loss alone.
        remat: what the backward pass computes again in training; None for nothing.
        plan: where variables live; None where XLA shall choose when they are gathered.
    """

    graph: ModuleGraph
    call: ModuleCall | None
    distribution: Distribution
    seed: int
    compute_loss: Callable[[Any, Batch, Any, bool], jax.Array] | None = None
    remat: Remat | None = None
    plan: LayoutPlan | None = None

    def __call__(self, trainable: Any, rest: Any, step: Any, x: Any, training: bool) -> tuple[Any, Any]:
        """The output for `x`, and `rest` afterwards."""

        def call(trainable: PyTree, rest: PyTree) -> tuple[PyTree, PyTree]:
            module = self.module(trainable, rest)
            with call_context.entered(training, anew=True):
                y_pred = self.run(module, step, constrain_inputs(x, self.distribution), training)
            return y_pred, self.graph.split(module)[1]

        return self.gathering(call, trainable, rest, x)

    def measure(
        self, objective: Objective, state: TrainState, trainable: Any, batch: Batch, training: bool
    ) -> tuple[dict[str, jax.Array], PyTree, PyTree, PyTree]:
        """The losses of a batch, the output, its mask, and `rest` afterwards."""

        def call(trainable: PyTree, rest: PyTree) -> tuple[dict[str, jax.Array], PyTree, PyTree, PyTree]:
            module = self.module(trainable, rest)
            if training and self.remat is not None:
                self.remat.mark(module)
            with call_context.entered(training, anew=True) as context:
                y_pred = self.run(module, state.step, constrain_inputs(batch[0], self.distribution), training)
                mask = context.mask_of(y_pred)
                mask = mask if jax.tree.leaves(mask) else None
                losses: dict[str, jax.Array] = {}

                def compiled_loss(batch: Batch, of: PyTree) -> jax.Array | None:
                    is_alike = jax.tree.structure(of) == jax.tree.structure(y_pred)
                    losses.update(objective.losses(batch, of, mask if is_alike else None))
                    return losses.get("loss")

                if self.compute_loss is None:
                    compiled_loss(batch, y_pred)
                else:  # of a subclass it may take outputs apart, or need none of the losses
                    context.compiled_loss = compiled_loss
                    loss, beside = split_reported(self.compute_loss(module, batch, y_pred, training))
                    losses["loss"] = check_scalar(loss)
                    check_free(losses, beside)
                    losses.update(beside)
            return losses, y_pred, mask, self.graph.split(module)[1]

        return self.gathering(call, trainable, state.rest, batch)

    def gathering(self, call: Callable[[Any, Any], Any], trainable: PyTree, rest: PyTree, batch: PyTree) -> Any:
        """What `call` returns for values of the variables, which are gathered where they are used (traced)."""
        if self.plan is None or not any(map(_jax.is_traced, jax.tree.leaves(batch))):
            return call(trainable, rest)
        paths = self.graph.nest([spec.path for spec in self.graph.specs])
        return with_gathers(call, self.plan, jax.tree.leaves(paths), (trainable, rest))

    def scattered(self, grads: PyTree) -> PyTree:
        """Gradients of some of the trained variables, which lie as the slots that they update (traced)."""
        if self.plan is None:
            return grads
        paths = dict(zip(self.graph.parts, (spec.path for spec in self.graph.specs), strict=True))
        mesh = self.plan.mesh.backend_mesh
        flat: dict[Any, Any] = dict(traverse_util.flatten_dict(grads))
        for parts, gradient in flat.items():
            if parts in paths and _jax.is_traced(gradient):
                row = self.plan.row(paths[parts])
                # as the parameter first: else the backward pass may be split as the slots are
                for axes in dict.fromkeys((row.axes, row.slot_axes)):
                    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
                    with weight_scope(row.path):
                        gradient = jax.lax.with_sharding_constraint(gradient, sharding)
                flat[parts] = gradient
        return traverse_util.unflatten_dict(flat)

    def module(self, trainable: PyTree, rest: PyTree) -> Any:
        """The module with these values; its submodules constrain what they return, as the layout rules say."""
        module = self.graph.merge(trainable, rest)
        constrain_outputs(module, self.distribution)
        return module

    def run(self, module: Any, step: ArrayLike, x: PyTree, training: bool) -> PyTree:
        """What the module returns for `x` in training or evaluation mode."""
        if self.call is not None:
            return self.call(module, x, training, self.rngs(step))
        if isinstance(module, Layer):
            return module(x, training=training)
        if training:
            module.train()
        else:
            module.eval()
        return module(x)

    def rngs(self, step: ArrayLike) -> nnx.Rngs:
        """Random streams of one step. The seed becomes a constant of the program in which it is called."""
        return nnx.Rngs(jax.random.fold_in(jax.random.key(self.seed), step))


def make_train_step(
    forward: Forward, objective: Objective, optimizers: Mapping[str, Optimizer], report: Collection[str] = ()
) -> Step:
    """One step of gradient descent on the mean loss of a batch, which logs what is in `report`, too."""
    check_loss_scales(optimizers)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        def loss_of(trainable: PyTree) -> tuple[jax.Array, tuple[PyTree, ...]]:
            losses, *others = forward.measure(objective, state, trainable, batch, True)
            return scale_loss(optimizers, losses["loss"], state.slots), (losses, *others)

        differentiated = loss_of if forward.remat is None else forward.remat.whole(loss_of)
        (_, (losses, y_pred, mask, rest)), grads = jax.value_and_grad(differentiated, has_aux=True)(state.trainable)
        grads = forward.scattered(grads)
        batch_weight = objective.batch_weight(batch, y_pred, mask) if accumulates(optimizers) else None
        new = apply_gradients(
            state,
            optimizers,
            grads,
            value=losses["loss"],
            value_fn=lambda trainable: loss_of(trainable)[1][0]["loss"],
            batch_weight=batch_weight,
        )
        states, outputs = (state, new), (y_pred, mask)
        extra = reported(report, objective, optimizers, states, grads, batch, outputs, batch_weight)
        new = new.replace(trainable=forward.graph.constrained(new.trainable), rest=rest)
        logs = objective.logs(losses, batch, y_pred, mask)
        check_free(logs, extra)
        return new, {**logs, **extra}

    return train_step


def own_train_step(forward: Forward, train_step: TrainStep) -> Step:
    """The train step that a user wrote, with the random streams of each step."""
    return lambda state, batch: train_step(state, batch, forward.rngs(state.step))


def make_test_step(forward: Forward, objective: Objective) -> Step:
    """Loss and metrics of a batch, and the state afterwards."""

    def test_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        losses, y_pred, mask, rest = forward.measure(objective, state, state.trainable, batch, False)
        return state.replace(rest=rest), objective.logs(losses, batch, y_pred, mask)

    return test_step


def make_predict_step(forward: Forward) -> Callable[[TrainState, PyTree], tuple[TrainState, PyTree]]:
    """The output for a batch of inputs, and the state afterwards."""

    def predict_step(state: TrainState, x: PyTree) -> tuple[TrainState, PyTree]:
        outputs, rest = forward(state.trainable, state.rest, state.step, x, False)
        return state.replace(rest=rest), outputs

    return predict_step


def check_scalar(loss: Any) -> jax.Array:
    """What `compute_loss` returned, if it is a scalar."""
    if not isinstance(loss, jax.Array | float | int) or jnp.shape(loss) != ():
        raise ModelError(
            "compute_loss did not return a scalar",
            given=f"{shorten(loss)} of type {type(loss).__name__}",
            expected='one number for the batch, or (loss, {"name": scalar})',
            fix="for example jnp.mean(loss)",
        )
    return jnp.asarray(loss)


def check_train_step(before: TrainState, returned: Any) -> tuple[TrainState, Mapping[str, Any]]:
    """What a train step returned, if it is `(state, logs)` with the state it was given, but for the values."""
    after, logs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(after, TrainState) or not isinstance(logs, Mapping):
        raise ModelError(
            "train_step did not return (state, logs)",
            given=f"{returned!r:.200} of type {type(returned).__name__}",
            expected="(TrainState, dict of scalars)",
            fix="return state.replace(...), {'loss': loss}",
        )
    check_state("train_step", before, after)
    for name, value in logs.items():
        if not isinstance(value, Observation | UpdatesTotal | Latest | Count) and jnp.shape(value) != ():
            raise ModelError(
                f"train_step logs {name!r}, which is not a scalar",
                given=f"shape {jnp.shape(value)}",
                expected="a scalar for each name",
                fix=f"for example jnp.mean({name})",
            )
    return after, logs


def check_state(step: str, before: TrainState, after: TrainState) -> None:
    """Check that the state after a step is that before it, but for the values."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise ModelError(
            f"{step} returned a state of another structure",
            given=f"{jax.tree.structure(after)}",
            expected=f"{jax.tree.structure(before)}",
            fix="change the values in the state, not its structure",
        )
    leaves = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, old), new in leaves:
        if jnp.shape(old) != jnp.shape(new) or jnp.result_type(old) != jnp.result_type(new):
            raise ModelError(
                f"{step} changed the shape or dtype of {_paths.join(_paths.parts_of(path))!r}",
                given=f"{jnp.shape(new)} {jnp.result_type(new)}",
                expected=f"{jnp.shape(old)} {jnp.result_type(old)}, as before the step",
                fix="cast the new value to the dtype of the old one"
                if jnp.shape(old) == jnp.shape(new)
                else "return a new value of the shape that the old one has, and each list in its order",
            )
