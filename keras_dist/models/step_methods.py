"""`StepProtocol`: what Keras's own training steps on JAX are made of, for models that override some of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._support.arguments import check_callable
from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.stateless_scope import StatelessScope
from keras_dist._support.types import PyTree
from keras_dist.data.batch import unpack_x_y_sample_weight
from keras_dist.errors import ModelError, shorten
from keras_dist.layers import Layer
from keras_dist.layers.weights import penalties
from keras_dist.losses.reduction import split_reported
from keras_dist.metrics import Metric
from keras_dist.models.runtime import ModelRuntime
from keras_dist.training.accumulators import by_name
from keras_dist.training.loop import Mode
from keras_dist.training.masks import mask_noted
from keras_dist.training.objective import check_free
from keras_dist.training.step import Batch, TrainStep
from keras_dist.training.step_protocol import StepProtocol
from keras_dist.training.train_state import TrainState
from keras_dist.variables import call_context

Lists = Sequence[Any]
"""Values, one for each variable of a list."""


class StepMethods(Layer):
    """The methods of `Model` that one step of training, evaluation or prediction consists of."""

    _runtime: ModelRuntime  # type: ignore[reportIncompatibleVariableOverride]

    if TYPE_CHECKING:
        optimizer: Any
        stateless_call: Any
        _chosen: Any
        _compiled: Any
        _with_weights: Any

    def compute_loss(
        self,
        x: PyTree = None,
        y: PyTree = None,
        y_pred: PyTree = None,
        sample_weight: PyTree = None,
        training: bool = True,
    ) -> jax.Array:
        """Compute the loss of a batch, a scalar: the loss of `compile` plus what layers and regularizers add.

        A subclass may override it. It runs inside the compiled step: it may use its arguments, the weights and
        `self.losses`, must return a scalar, and must not change anything but metrics of the model. It may also return
        `(loss, {"name": scalar})`, whose scalars are logged beside the loss. Called in a custom `train_step` it returns
        the loss of `compile` only; `stateless_call(..., return_losses=True)` returns the others.

        Args:
            x: inputs.
            y: targets.
            y_pred: outputs of the model for `x`.
            sample_weight: weights of the examples, or None.
            training: whether the model is being trained.

        Source: `keras.Model.compute_loss`.
        """
        context = call_context.current()
        if context is not None and context.compiled_loss is not None:
            chosen, others = context.compiled_loss((x, y, sample_weight), y_pred), self.losses
        else:
            objective = self._compiled("compute_loss").objective("compute_loss")
            found = objective.losses((x, y, sample_weight), y_pred, _mask_of(y_pred))
            chosen, others = found.get("loss"), self._runtime.losses_given
            if others is None:
                return found["loss"]
            self._chosen().metrics.note_losses({name: one for name, one in found.items() if name != "loss"}, x)
        losses = [*([] if chosen is None else [chosen]), *others]
        if not losses:
            given = "compile without a loss, and no layer or regularizer that adds one"
            fix = 'for example model.compile("adam", loss="mse"), or add_loss in a layer'
            raise ModelError(f"there is nothing to minimise in model {self.name!r}", given=given, fix=fix)
        return sum(losses[1:], losses[0])

    def stateless_compute_loss(
        self,
        trainable_variables: Lists,
        non_trainable_variables: Lists,
        metrics_variables: Lists,
        x: PyTree = None,
        y: PyTree = None,
        y_pred: PyTree = None,
        sample_weight: PyTree = None,
        training: bool = True,
    ) -> tuple[jax.Array, tuple[Lists, list[Any], list[Any]]]:
        """Call `compute_loss` with these values of the variables; a pure function.

        Args:
            trainable_variables: values for `trainable_variables`.
            non_trainable_variables: values for `non_trainable_variables`.
            metrics_variables: values for `metrics_variables`.
            x: inputs.
            y: targets.
            y_pred: outputs of the model for `x`.
            sample_weight: weights of the examples, or None.
            training: whether the model is being trained.

        Returns:
            The loss, and the three lists afterwards.
        """
        parts = (self.trainable_variables, self.non_trainable_variables, self.metrics_variables)
        values = (trainable_variables, non_trainable_variables, metrics_variables)
        pairs = [pair for part, given in zip(parts, values, strict=True) for pair in zip(part, given, strict=True)]
        handles = [handle for handle, _ in pairs]
        runtime, given = self._runtime, self._runtime.losses_given
        arguments = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
        if "training" in inspect.signature(self.compute_loss).parameters:
            arguments["training"] = training
        with StatelessScope(handles, [value_of(value) for _, value in pairs]) as scope:
            try:
                if given is None and self._is_built:
                    runtime.losses_given = penalties(self)
                loss, reported = split_reported(self.compute_loss(**arguments))
            finally:
                runtime.losses_given = given
            if reported:
                summary = "compute_loss returns values to log in a model that logs by its metrics"
                fix = "log by a metric: self.extra = kd.metrics.Mean('extra'), and self.extra.update_state(value)"
                raise ModelError(summary, given=f"(loss, {shorten(reported)})", fix=fix)
            after = [scope.values(part) for part in parts[1:]]
        return loss, (trainable_variables, *after)  # type: ignore[return-value]

    def compute_loss_and_updates(
        self,
        trainable_variables: Lists,
        non_trainable_variables: Lists,
        metrics_variables: Lists,
        x: PyTree,
        y: PyTree,
        sample_weight: PyTree,
        training: bool = False,
        optimizer_variables: Lists | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Compute the loss that is differentiated, scaled as the optimizer asks, from values of all variables.

        Args:
            trainable_variables: values for `trainable_variables`.
            non_trainable_variables: values for `non_trainable_variables`.
            metrics_variables: values for `metrics_variables`.
            x: inputs.
            y: targets.
            sample_weight: weights of the examples, or None.
            training: whether the model is being trained.
            optimizer_variables: values for `optimizer.variables`; None where the loss is not differentiated.

        Returns:
            The loss, and `(unscaled_loss, y_pred, non_trainable_variables, metrics_variables)`.
        """
        y_pred, non_trainable_variables, losses = self.stateless_call(
            trainable_variables, non_trainable_variables, x, return_losses=True, training=training
        )
        runtime = self._runtime
        runtime.losses_given = list(losses)
        try:
            loss, (_, non_trainable_variables, metrics_variables) = self.stateless_compute_loss(
                trainable_variables,
                non_trainable_variables,
                metrics_variables,
                x=x,
                y=y,
                y_pred=y_pred,
                sample_weight=sample_weight,
                training=training,
            )
        finally:
            runtime.losses_given = None
        unscaled = loss
        if training and optimizer_variables is not None:
            with StatelessScope(self.optimizer.variables, map(value_of, optimizer_variables)):
                loss = self.optimizer.scale_loss(loss)
        return loss, (unscaled, y_pred, non_trainable_variables, metrics_variables)

    def train_step(self, state: Any, data: Any) -> tuple[Mapping[str, Any], Any]:
        """Take one step of training; a pure function of lists of arrays, which a subclass may override.

        Without an override steps are compiled from `compile` alone, and this method is what `super().train_step` finds.
        A `train_step(self, state, batch, rngs)` has the other form; see `compile`.

        Args:
            state: `(trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables)`: lists of
                values for the lists of variables that the model, its optimizer and its metrics have.
            data: the batch: `x`, `(x, y)` or `(x, y, sample_weight)`; `(x,)` where `x` is a tuple or list.

        Returns:
            `(logs, state)`: a dict of what is logged, numbers or arrays, and the state afterwards. What the last step
            of an epoch logs is what the epoch logs, so that means come from metrics.

        Example:
            >>> import jax
            >>> import keras_dist as kd
            >>> import numpy as np
            >>> class Halving(kd.Sequential):
            ...     def train_step(self, state, data):
            ...         logs, (trainable, *others) = super().train_step(state, data)
            ...         return logs, (jax.tree.map(lambda value: value / 2, trainable), *others)
            >>> model = Halving([kd.Input((3,)), kd.layers.Dense(2)])
            >>> model.compile(kd.optimizers.SGD(0.0), loss="mse")
            >>> before = model.get_weights()[0]
            >>> history = model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
            >>> bool(np.allclose(model.get_weights()[0], before / 2))
            True
        """
        trainable, others, slots, measured = state
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, y_pred, others, measured)), grads = grad_fn(
            trainable, others, measured, x, y, sample_weight, training=True, optimizer_variables=slots
        )
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        logs, measured = self._measured(measured, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, others, slots, measured)

    def test_step(self, state: Any, data: Any) -> tuple[Mapping[str, Any], Any]:
        """Measure one batch; a pure function of lists of arrays, which a subclass may override. See `train_step`.

        Args:
            state: `(trainable_variables, non_trainable_variables, metrics_variables)`.
            data: the batch: `x`, `(x, y)` or `(x, y, sample_weight)`; `(x,)` where `x` is a tuple or list.

        Returns:
            `(logs, state)`: a dict of what is logged, numbers or arrays, and the state afterwards, which is kept.
        """
        trainable, others, measured = state
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        _, (loss, y_pred, others, measured) = self.compute_loss_and_updates(
            trainable, others, measured, x, y, sample_weight, training=False
        )
        logs, measured = self._measured(measured, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, others, measured)

    def predict_step(self, state: Any, data: Any) -> tuple[PyTree, Any]:
        """Compute the outputs for a batch; a pure function of lists of arrays, which a subclass may override.

        Args:
            state: `(trainable_variables, non_trainable_variables)`.
            data: the inputs, `x`; `(x,)` where they are a tuple or list.

        Returns:
            `(outputs, non_trainable_variables)`, of which the random generators count.
        """
        x, _, _ = unpack_x_y_sample_weight(data)
        return self.stateless_call(*state, x, training=False)  # type: ignore[return-value]

    def compute_metrics(self, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree = None) -> Mapping[str, Any]:
        """Update the metrics with a batch, and return what is logged. A subclass may override it.

        It runs inside the compiled step, and may update the metrics of the model.

        Args:
            x: inputs.
            y: targets.
            y_pred: outputs of the model for `x`.
            sample_weight: weights of the examples, or None.

        Returns:
            Numbers or arrays by name.
        """
        del x
        compiled = self._chosen().metrics.compiled
        if compiled is not None:
            compiled.update_state(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def _measured(
        self, metrics_variables: Lists, loss: Any, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
    ) -> tuple[Mapping[str, Any], list[Any]]:
        """What is logged of a batch, and the variables of metrics afterwards."""
        handles = self.metrics_variables
        with StatelessScope(handles, map(value_of, metrics_variables)) as scope:
            self._chosen().metrics.note_losses({"loss": loss}, x)
            logs = self.compute_metrics(x, y, y_pred, sample_weight)
            return values_in(logs), scope.values(handles)

    @property
    def losses(self) -> list[jax.Array]:
        """The losses added in the last call, by it and its sublayers, and the penalties of its regularizers."""
        given = self._runtime.losses_given
        return super().losses if given is None else given

    @property
    def metrics(self) -> list[Metric]:
        """The metric objects: the mean loss, the metrics of `compile` as one object, the mean loss of each output.

        Behind them those among the attributes of the model and its layers. They hold the values of the last epoch or
        evaluation; before `compile` the first ones are missing. Reading a value waits for the last step.
        A subclass that overrides a step may override it: these metrics are reset with each epoch.

        Source: `keras.Model.metrics`.
        """
        choices = self._runtime.choices
        return [*([] if choices is None else choices.metrics.all), *super().metrics]

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`.

        Source: `keras.Model.metrics_names`.
        """
        return [metric.name for metric in self.metrics]

    def reset_metrics(self) -> None:
        """Reset the state of all `metrics`. `fit` and `evaluate` do this themselves.

        Source: `keras.Model.reset_metrics`.
        """
        for metric in self.metrics:
            metric.reset_state()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the values of all `metrics` by the names they are logged under.

        Raises:
            ModelError: the model has metrics and was neither trained nor evaluated.

        Source: `keras.Model.get_metrics_result`.
        """
        found: dict[str, Any] = {}
        for metric in self.metrics:
            found |= by_name(metric.name, metric.result())
        return found

    @property
    def compiled(self) -> bool:
        """Whether `compile` was called."""
        return self._runtime.choices is not None


_MODES: tuple[Mode, ...] = ("train", "test", "predict")

_MEASURES = ("compute_metrics", "stateless_compute_loss", "get_metrics_result")
"""What Keras's own steps call: who overrides one of these has Keras's steps, where he has none of his own."""


def steps_of(model: StepMethods, given: TrainStep | None) -> tuple[TrainStep | None, StepProtocol | None]:
    """Return the pure train step, which `compile` may give, and the steps in the form of Keras."""
    found: dict[Mode, Any] = {}
    own: dict[Mode, Any] = {mode: _own(model, f"{mode}_step") for mode in _MODES}
    if given is not None:
        check_callable("train_step", given, "state, batch, rngs")
        own["train"] = None
    elif own["train"] is not None and _takes(own["train"], 3):
        given, own["train"] = own["train"], None
    for mode, step in own.items():
        if step is not None:
            if not _takes(step, 2):
                raise _wrong_form(model, mode, step)
            found[mode] = step
    if given is None and _measures_itself(model, has_train_step="train" in found):
        found = {"train": model.train_step, "test": model.test_step, **found}
    if not found:
        return given, None
    lists = lambda: (model.trainable_variables, model.non_trainable_variables)  # noqa: E731
    metrics = lambda: model.metrics  # noqa: E731
    reset = lambda: model.reset_metrics()  # noqa: E731
    return given, StepProtocol(found, lists, metrics, reset, lambda state, batch: _prepare(model, state, batch))


def _measures_itself(model: StepMethods, has_train_step: bool) -> bool:
    """Whether the model's class overrides what Keras's steps call to measure, or updates metrics in its loss.

    Beside a `train_step` of its own `compute_loss_and_updates` is often a part of that, with other arguments.
    """
    names = _MEASURES if has_train_step else (*_MEASURES, "compute_loss_and_updates")
    if any(_own(model, name) is not None for name in names):
        return True
    return _own(model, "compute_loss") is not None and bool(Layer.metrics.fget(model))  # type: ignore[misc]


def _own(model: StepMethods, name: str) -> Any:
    """The method of this name, if it is the user's own; None else."""
    found = getattr(model, name)
    return None if getattr(found, "__func__", None) is getattr(StepMethods, name) else found


def _takes(step: Any, count: int) -> bool:
    """Whether a step takes so many arguments, and none has to be given besides."""
    try:
        parameters = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return False
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return count == 2
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) == count and not any(one.kind is one.KEYWORD_ONLY for one in needed)


def _wrong_form(model: StepMethods, mode: str, step: Any) -> ModelError:
    states = {
        "train": "(trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables)",
        "test": "(trainable_variables, non_trainable_variables, metrics_variables)",
        "predict": "(trainable_variables, non_trainable_variables)",
    }
    returned = "(outputs, non_trainable_variables)" if mode == "predict" else "(logs, state)"
    also = ", or the pure train_step(self, state, batch, rngs) -> (state, logs)" if mode == "train" else ""
    expected = f"{mode}_step(self, state, data) -> {returned} with state = {states[mode]}{also}"
    fix = "call the model by self.stateless_call(trainable_variables, non_trainable_variables, x)"
    if mode == "train":
        fix += ", and self.optimizer.stateless_apply(optimizer_variables, grads, trainable_variables)"
    return ModelError(
        f"{type(model).__name__}.{mode}_step does not have the form of Keras on JAX",
        given=f"{mode}_step{inspect.signature(step)}" + (", as for TensorFlow or torch" if _takes(step, 1) else ""),
        expected=expected,
        fix=fix,
    )


def _prepare(model: StepMethods, state: TrainState, batch: Batch) -> None:
    """Let the metrics of `compile` make their variables, which may follow from targets and outputs (traced)."""
    objective, measured = model._chosen().objective, model._chosen().metrics
    if objective is None or (objective.loss is None and measured.compiled is None):
        return
    x, y, sample_weight = batch
    y_pred = model._with_weights(x).forward(state.trainable, state.rest, state.step, x, False)[0]
    with StatelessScope():
        losses = objective.losses(batch, y_pred)
        measured.note_losses(losses, x)
        if measured.compiled is not None:
            measured.compiled.update_state(y, y_pred, sample_weight)
            check_free(measured.compiled.logged or {}, losses)


def _mask_of(y_pred: PyTree) -> PyTree:
    """The mask of outputs: of traced ones that which the step has noted."""
    noted = mask_noted(y_pred)
    mask = call_context.CallContext().mask_of(y_pred) if noted is None else noted
    return mask if jax.tree.leaves(mask) else None
