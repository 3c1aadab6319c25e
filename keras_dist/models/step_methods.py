"""`StepMethods`: Keras's methods of a model for single steps, and access to its record."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._support import tree_paths
from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.stateless_scope import StatelessScope
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.data.batch import unpack_x_y_sample_weight
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError, shorten
from keras_dist.layers import Layer
from keras_dist.layers.base.weights import penalties, walk_owned
from keras_dist.losses.loss import split_reported
from keras_dist.metrics import Metric
from keras_dist.models.functional import Graph, replaced
from keras_dist.models.initialization import built, create_weights, forward_of
from keras_dist.models.model_distribution import no_layout_yet
from keras_dist.models.model_record import ModelRecord
from keras_dist.training.accumulators import by_name
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.compile_metrics import recorded_mask
from keras_dist.training.step import Forward
from keras_dist.variables import call_context
from keras_dist.variables.variable import Variable

Lists = Sequence[Any]  # a value for each variable in a list


class StepMethods(Layer):
    """The methods of `Model` for a step of training, evaluation or prediction."""

    _record: ModelRecord  # type: ignore[reportIncompatibleVariableOverride]
    _record_type = ModelRecord
    _graph: Graph | None = None

    if TYPE_CHECKING:
        optimizer: Any
        stateless_call: Any

    def compute_loss(
        self,
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
            chosen, others = context.compiled_loss((x, y, sample_weight), y_pred), self.losses
        else:
            objective = self._compiled("compute_loss").objective("compute_loss")
            found = objective.losses((x, y, sample_weight), y_pred, _mask_of(y_pred))
            chosen, others = found.get("loss"), self._record.losses_given
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
            trainable_variables, non_trainable_variables, metrics_variables: values for the variables of these names.
            x, y, y_pred, sample_weight, training: as in `compute_loss`.

        Returns:
            The loss, and the three lists afterwards.
        """
        parts = (self.trainable_variables, self.non_trainable_variables, self.metrics_variables)
        values = (trainable_variables, non_trainable_variables, metrics_variables)
        pairs = [pair for part, given in zip(parts, values, strict=True) for pair in zip(part, given, strict=True)]
        handles = [handle for handle, _ in pairs]
        record, given = self._record, self._record.losses_given
        arguments = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
        if "training" in inspect.signature(self.compute_loss).parameters:
            arguments["training"] = training
        with StatelessScope(handles, [value_of(value) for _, value in pairs]) as scope:
            try:
                if given is None and self._is_built:
                    record.losses_given = penalties(self)
                loss, reported = split_reported(self.compute_loss(**arguments))
            finally:
                record.losses_given = given
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
        """Compute the loss to differentiate, scaled by the optimizer, from values of all variables.

        Args:
            trainable_variables, non_trainable_variables, metrics_variables: as in `stateless_compute_loss`.
            x, y, sample_weight, training: as in `compute_loss`.
            optimizer_variables: values for `optimizer.variables`; None if the loss is not differentiated.

        Returns:
            The loss, and `(unscaled_loss, y_pred, non_trainable_variables, metrics_variables)`.
        """
        y_pred, non_trainable_variables, losses = self.stateless_call(
            trainable_variables, non_trainable_variables, x, return_losses=True, training=training
        )
        record = self._record
        record.losses_given = list(losses)
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
            record.losses_given = None
        unscaled = loss
        if training and optimizer_variables is not None:
            with StatelessScope(self.optimizer.variables, map(value_of, optimizer_variables)):
                loss = self.optimizer.scale_loss(loss)
        return loss, (unscaled, y_pred, non_trainable_variables, metrics_variables)

    def train_step(self, state: Any, data: Any) -> tuple[Mapping[str, Any], Any]:
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
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, y_pred, others, measured)), grads = grad_fn(
            trainable, others, measured, x, y, sample_weight, training=True, optimizer_variables=slots
        )
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        logs, measured = self._measured(measured, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, others, slots, measured)

    def test_step(self, state: Any, data: Any) -> tuple[Mapping[str, Any], Any]:
        """Evaluate one batch; a pure function of lists of arrays, which a subclass may override. See `train_step`.

        Args:
            state: `(trainable_variables, non_trainable_variables, metrics_variables)`.
            data: the batch: `x`, `(x, y)` or `(x, y, sample_weight)`; `(x,)` where `x` is a tuple or list.

        Returns:
            `(logs, state)`: a dict of numbers or arrays, and the state afterwards, which is kept.
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
            `(outputs, non_trainable_variables)`; states of random generators, and variables that `call` assigns, are
            kept.
        """
        x, _, _ = unpack_x_y_sample_weight(data)
        return self.stateless_call(*state, x, training=False)  # type: ignore[return-value]

    def compute_metrics(self, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree = None) -> Mapping[str, Any]:
        """Update the metrics with a batch, and return the logs. A subclass may override it.

        It runs inside the compiled step, and may update the metrics of the model.

        Args:
            x, y, y_pred, sample_weight: as in `compute_loss`.

        Returns:
            Numbers or arrays by name.
        """
        compiled = self._chosen().metrics.compiled
        if compiled is not None:
            compiled.update_state(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def _measured(
        self, metrics_variables: Lists, loss: Any, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
    ) -> tuple[Mapping[str, Any], list[Any]]:
        """Return the logs of a batch, and the variables of metrics afterwards."""
        handles = self.metrics_variables
        with StatelessScope(handles, map(value_of, metrics_variables)) as scope:
            self._chosen().metrics.note_losses({"loss": loss}, x)
            logs = self.compute_metrics(x, y, y_pred, sample_weight)
            return values_in(logs), scope.values(handles)

    @property
    @hides_mesh
    def losses(self) -> list[jax.Array]:
        """Losses that the model and its sublayers added in the last call, and penalties of regularizers."""
        given = self._record.losses_given
        return super().losses if given is None else given

    @property
    def metrics(self) -> list[Metric]:
        """The metrics: mean loss, the metrics of `compile` as one object, mean loss of each output, and attributes.

        Attributes of the model and its layers that are metrics come last; before `compile` only they exist. Metrics
        have the values of the last epoch or evaluation, and reading them waits for the last step. A subclass that
        overrides a step may override this property; its metrics are reset with each epoch.
        """
        choices = self._record.choices
        return [*([] if choices is None else choices.metrics.all), *super().metrics]

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`."""
        return [metric.name for metric in self.metrics]

    def reset_metrics(self) -> None:
        """Reset the state of all `metrics`. `fit` and `evaluate` call it themselves."""
        for metric in self.metrics:
            metric.reset_state()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the values of all `metrics` by the names they are logged under.

        Raises:
            ModelError: the model has metrics and was neither trained nor evaluated.
        """
        found: dict[str, Any] = {}
        for metric in self.metrics:
            found |= by_name(metric.name, metric.result())
        return found

    # Access to the record

    @property
    def _built(self) -> BuiltModel | None:
        return self._record.session

    @property
    def _compile_config(self) -> CompileConfig | None:
        return self._record.choices

    def _chosen(self) -> CompileConfig:
        return self._record.choices or CompileConfig()

    @property
    def _awaits_layout(self) -> Distribution | None:
        """The `AutoParallel` that will find the layout in `fit`; None without one."""
        asked = self._record.made_under
        return asked if self._built is None and asked is not None and asked.is_searched else None

    def _await_layout(self) -> None:
        """Let values of the layers' variables raise an error until there is a layout."""
        if self._awaits_layout is not None:
            for parts, variable, owners in walk_owned(self):
                if isinstance(variable, Variable) and variable.is_deferred:
                    variable.belong_to(owners, tree_paths.join(parts))

    def check_may_create(self) -> None:
        """Raise if `AutoParallel` has not found the layout of the weights yet."""
        if self._awaits_layout is not None:
            raise no_layout_yet(f"values of model {self.name!r}, whose variables are deferred")

    @property
    def _casts_inputs(self) -> bool:
        return self.autocast and self._graph is None  # a functional model casts them to the dtypes of its inputs

    @property
    def _may_add_losses(self) -> bool:
        """Whether layers, regularizers and `compute_loss` contribute to the loss: not in foreign modules."""
        return self._record.source is None

    @property
    def _has_host_part(self) -> bool:
        """Whether the first layers run on the host."""
        return self._graph is not None and bool(self._graph.host_nodes)

    def _prepared(self, x: PyTree) -> PyTree:
        """Return the inputs of the compiled part of the model, computed by the layers on the host."""
        if self._graph is None or not self._graph.host_nodes:
            return x
        return replaced(self._graph.on_devices.inputs, self._graph.run_on_host(x))

    def _check_idle(self, method: str) -> None:
        """Check that the model is not training."""
        if self._built is not None and self._built.cell.is_training:
            given = f"{method} in a callback, or in another thread, while the model trains"
            fix = f"end the training with model.stop_training = True, and call {method} after it"
            raise ModelError(f"{method}: fit is running", given=given, fix=fix)

    def _check_compiled(self, method: str) -> None:
        if self._compile_config is None:
            summary = f"You must call `compile()` before using the model: {method} needs it"
            fix = 'for example model.compile("adam", loss="mse")'
            raise ModelError(summary, given="a model that is not compiled", fix=fix)

    def _compiled(self, method: str, x: Any = None) -> BuiltModel:
        """Return the built model; raise unless it is compiled."""
        self._check_compiled(method)
        return self._with_weights(x)

    def _with_weights(self, *args: Any, **kwargs: Any) -> BuiltModel:
        """Return the built model; create its weights, if necessary, for a call with such arguments."""
        return built(self, args, kwargs)

    def _create_weights(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BuiltModel:
        """Create the weights for symbolic arguments of a call."""
        return create_weights(self, args, kwargs)

    def _build_for(self, tensors: PyTree) -> None:
        """Create the weights for such symbolic inputs, unless they exist."""
        if self._built is None:
            self._create_weights((tensors,), {})

    def _after_creation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the symbolic arguments for which the weights were created."""

    def _forward_on(self, x: PyTree, distribution: Distribution | None) -> Forward:
        return forward_of(self, x, distribution)


def _mask_of(y_pred: PyTree) -> PyTree:
    """Return the mask of outputs, which the step has recorded for traced outputs."""
    recorded = recorded_mask(y_pred)
    mask = call_context.CallContext().mask_of(y_pred) if recorded is None else recorded
    return mask if jax.tree.leaves(mask) else None
