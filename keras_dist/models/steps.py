"""Keras's methods of a model for single steps: losses, metrics, and steps as pure functions of lists of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.stateless_scope import StatelessScope
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.data.batch import unpack_x_y_sample_weight
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.weights import penalties
from keras_dist.losses.loss import split_reported
from keras_dist.metrics import Metric
from keras_dist.models.model_base import ModelBase
from keras_dist.training.accumulators import by_name
from keras_dist.training.compile_metrics import recorded_mask
from keras_dist.variables import call_context

Lists = Sequence[Any]  # a value for each variable in a list


def compute_loss(
    model: ModelBase,
    x: PyTree = None,
    y: PyTree = None,
    y_pred: PyTree = None,
    sample_weight: PyTree = None,
    training: bool = True,
) -> jax.Array:
    """Compute the loss of a batch, a scalar: the loss of `compile` plus losses of layers and regularizers.

    A subclass may override it. It runs inside the compiled step. It may use its arguments, the weights and
    `self.losses`, and may change only metrics of the model. It returns a scalar, or `(loss, {"name": scalar})`,
    whose scalars are logged beside the loss. Called in a custom `train_step` it returns the loss of `compile`;
    `stateless_call(..., return_losses=True)` returns the others.

    Args:
        x: inputs.
        y: targets.
        y_pred: outputs of the model for `x`.
        sample_weight: weights of the examples, or None.
        training: whether the model is being trained.
    """
    context = call_context.current()
    if context is not None and context.compiled_loss is not None:
        chosen, others = context.compiled_loss((x, y, sample_weight), y_pred), model.losses
    else:
        objective = model._compiled_model("compute_loss").objective("compute_loss")
        found = objective.losses((x, y, sample_weight), y_pred, _mask_of(y_pred))
        chosen, others = found.get("loss"), model._record.losses_given
        if others is None:
            return found["loss"]
        model._compile_config.metrics.note_losses({name: one for name, one in found.items() if name != "loss"}, x)
    losses = [*([] if chosen is None else [chosen]), *others]
    if not losses:
        given = "compile without a loss, and no layer or regularizer that adds one"
        fix = 'for example model.compile("adam", loss="mse"), or add_loss in a layer'
        raise ModelError(f"there is nothing to minimise in model {model.name!r}", given=given, fix=fix)
    return sum(losses[1:], losses[0])


def stateless_compute_loss(
    model: ModelBase,
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
        trainable_variables, non_trainable_variables, metrics_variables: values for the variables of these names.
        x, y, y_pred, sample_weight, training: as in `compute_loss`.

    Returns:
        The loss, and the three lists afterwards.
    """
    parts = (model.trainable_variables, model.non_trainable_variables, model.metrics_variables)
    values = (trainable_variables, non_trainable_variables, metrics_variables)
    pairs = [pair for part, given in zip(parts, values, strict=True) for pair in zip(part, given, strict=True)]
    handles = [handle for handle, _ in pairs]
    record, given = model._record, model._record.losses_given
    arguments = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
    if "training" in inspect.signature(model.compute_loss).parameters:
        arguments["training"] = training
    with StatelessScope(handles, [value_of(value) for _, value in pairs]) as scope:
        try:
            if given is None and model._is_built:
                record.losses_given = penalties(model)
            loss, reported = split_reported(model.compute_loss(**arguments))
        finally:
            record.losses_given = given
        if reported:
            summary = "compute_loss returns values to log in a model that logs by its metrics"
            fix = "log by a metric: self.extra = kd.metrics.Mean('extra'), and self.extra.update_state(value)"
            raise ModelError(summary, given=f"(loss, {shorten(reported)})", fix=fix)
        after = [scope.values(part) for part in parts[1:]]
    return loss, (trainable_variables, *after)  # type: ignore[return-value]


def compute_loss_and_updates(
    model: ModelBase,
    trainable_variables: Lists,
    non_trainable_variables: Lists,
    metrics_variables: Lists,
    x: PyTree,
    y: PyTree,
    sample_weight: PyTree,
    training: bool = False,
    optimizer_variables: Lists | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """Compute the loss to differentiate, scaled by the optimizer, from values of all variables.

    Args:
        trainable_variables, non_trainable_variables, metrics_variables: as in `stateless_compute_loss`.
        x, y, sample_weight, training: as in `compute_loss`.
        optimizer_variables: values for `optimizer.variables`; None if the loss is not differentiated.

    Returns:
        The loss, and `(unscaled_loss, y_pred, non_trainable_variables, metrics_variables)`.
    """
    y_pred, non_trainable_variables, losses = model.stateless_call(
        trainable_variables, non_trainable_variables, x, return_losses=True, training=training
    )
    record = model._record
    record.losses_given = list(losses)
    try:
        loss, (_, non_trainable_variables, metrics_variables) = model.stateless_compute_loss(
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
        record.losses_given = None
    unscaled = loss
    if training and optimizer_variables is not None:
        with StatelessScope(model.optimizer.variables, map(value_of, optimizer_variables)):
            loss = model.optimizer.scale_loss(loss)
    return loss, (unscaled, y_pred, non_trainable_variables, metrics_variables)


def train_step(model: ModelBase, state: Any, data: Any) -> tuple[Mapping[str, Any], Any]:
    """Take one training step; a pure function of lists of arrays, which a subclass may override.

    Without an override, steps follow from `compile`, and this method serves `super().train_step`. For the form
    `train_step(self, state, batch, rngs)` see `compile`.

    Args:
        state: `(trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables)`: lists of
            values for the variables of the model, its optimizer and its metrics.
        data: the batch: `x`, `(x, y)` or `(x, y, sample_weight)`; `(x,)` where `x` is a tuple or list.

    Returns:
        `(logs, state)`: a dict of numbers or arrays, and the state afterwards. An epoch logs the values of its
        last step; use metrics for means.

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
    grad_fn = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    (_, (loss, y_pred, others, measured)), grads = grad_fn(
        trainable, others, measured, x, y, sample_weight, training=True, optimizer_variables=slots
    )
    trainable, slots = model.optimizer.stateless_apply(slots, grads, trainable)
    logs, measured = _measured(model, measured, loss, x, y, y_pred, sample_weight)
    return logs, (trainable, others, slots, measured)


def test_step(model: ModelBase, state: Any, data: Any) -> tuple[Mapping[str, Any], Any]:
    """Evaluate one batch; a pure function of lists of arrays, which a subclass may override. See `train_step`.

    Args:
        state: `(trainable_variables, non_trainable_variables, metrics_variables)`.
        data: the batch: `x`, `(x, y)` or `(x, y, sample_weight)`; `(x,)` where `x` is a tuple or list.

    Returns:
        `(logs, state)`: a dict of numbers or arrays, and the state afterwards, which is kept.
    """
    trainable, others, measured = state
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    _, (loss, y_pred, others, measured) = model.compute_loss_and_updates(
        trainable, others, measured, x, y, sample_weight, training=False
    )
    logs, measured = _measured(model, measured, loss, x, y, y_pred, sample_weight)
    return logs, (trainable, others, measured)


def predict_step(model: ModelBase, state: Any, data: Any) -> tuple[PyTree, Any]:
    """Compute the outputs for a batch; a pure function of lists of arrays, which a subclass may override.

    Args:
        state: `(trainable_variables, non_trainable_variables)`.
        data: the inputs, `x`; `(x,)` where they are a tuple or list.

    Returns:
        `(outputs, non_trainable_variables)`; states of random generators, and variables that `call` assigns, are
        kept.
    """
    x, _, _ = unpack_x_y_sample_weight(data)
    return model.stateless_call(*state, x, training=False)  # type: ignore[return-value]


def compute_metrics(
    model: ModelBase, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree = None
) -> Mapping[str, Any]:
    """Update the metrics with a batch, and return the logs. A subclass may override it.

    It runs inside the compiled step, and may update the metrics of the model.

    Args:
        x, y, y_pred, sample_weight: as in `compute_loss`.

    Returns:
        Numbers or arrays by name.
    """
    compiled = model._compile_config.metrics.compiled
    if compiled is not None:
        compiled.update_state(y, y_pred, sample_weight)
    return model.get_metrics_result()


def _measured(
    model: ModelBase, metrics_variables: Lists, loss: Any, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the logs of a batch, and the variables of metrics afterwards."""
    handles = model.metrics_variables
    with StatelessScope(handles, map(value_of, metrics_variables)) as scope:
        model._compile_config.metrics.note_losses({"loss": loss}, x)
        logs = model.compute_metrics(x, y, y_pred, sample_weight)
        return values_in(logs), scope.values(handles)


@hides_mesh
def losses(model: ModelBase) -> list[jax.Array]:
    """Losses that the model and its sublayers added in the last call, and penalties of regularizers."""
    given = model._record.losses_given
    return super(ModelBase, model).losses if given is None else given


def metrics(model: ModelBase) -> list[Metric]:
    """The metrics: mean loss, the metrics of `compile` as one object, mean loss of each output, and attributes.

    Attributes of the model and its layers that are metrics come last; before `compile` only they exist. Metrics
    have the values of the last epoch or evaluation, and reading them waits for the last step. A subclass that
    overrides a step may override this property; its metrics are reset with each epoch.
    """
    compiled = model._compile_config.metrics.all if model._record.compile_config is not None else []
    return [*compiled, *super(ModelBase, model).metrics]


def metrics_names(model: ModelBase) -> list[str]:
    """The names of `metrics`."""
    return [metric.name for metric in model.metrics]


def reset_metrics(model: ModelBase) -> None:
    """Reset the state of all `metrics`. `fit` and `evaluate` call it themselves."""
    for metric in model.metrics:
        metric.reset_state()


def get_metrics_result(model: ModelBase) -> dict[str, Any]:
    """Return the values of all `metrics` by the names they are logged under.

    Raises:
        ModelError: the model has metrics and was neither trained nor evaluated.
    """
    found: dict[str, Any] = {}
    for metric in model.metrics:
        found |= by_name(metric.name, metric.result())
    return found


def _mask_of(y_pred: PyTree) -> PyTree:
    """Return the mask of outputs, which the step has recorded for traced outputs."""
    recorded = recorded_mask(y_pred)
    mask = call_context.CallContext().mask_of(y_pred) if recorded is None else recorded
    return mask if jax.tree.leaves(mask) else None
