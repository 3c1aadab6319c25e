"""`DistributionMethods`: the variables of a model, their values and layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flax import nnx

import keras_dist
from keras_dist._support.types import PyTree
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.deferred_weights import has_variables
from keras_dist.layers.module_precision import follow
from keras_dist.layers.names import layers_in
from keras_dist.models.graph_methods import GraphMethods
from keras_dist.models.initialization import plan_before_search
from keras_dist.training.naming import layers_below
from keras_dist.training.optimization import apply_gradients
from keras_dist.training.train_state import TrainState

if TYPE_CHECKING:
    from keras_dist.planner import PlanReport, Target


def has_built_parts(model: Layer) -> bool:
    """Whether a model without inputs has weights because all of its layers are built."""
    if (
        not isinstance(model, DistributionMethods)
        or model._graph is not None
        or not hasattr(type(model).build, "creates_weights")
    ):
        return False
    layers = layers_in(model)
    return bool(layers) and all(layer.built or has_built_parts(layer) for layer in layers)


def has_deferred_parts(model: DistributionMethods) -> bool:
    """Whether the layers have all variables of a model with known inputs that awaits its layout from `AutoParallel`."""
    is_awaiting = model._awaits_layout is not None and model._graph is not None
    layers = (layer for _, layer in layers_below(model) if not hasattr(type(layer).build, "creates_weights"))
    return is_awaiting and all(map(has_variables, layers))


class DistributionMethods(GraphMethods):
    """The methods of `Model` for its variables, its state and their layouts."""

    @property
    def variables(self) -> list[Any]:
        """All variables: the weights and the states of random generators."""
        if self._is_listed_by_layers:
            return self._with_states(self._weights_so_far())
        session = self._with_weights()
        return [*session.variables(), *session.generators()]

    @property
    def weights(self) -> list[Any]:
        """The weights in Keras's order, without keys of random streams.

        A subclass that was not called yet has the weights of its layers, if all of them are built. Under
        `AutoParallel`, the weights of a model that knows its inputs are deferred variables until `fit`.

        Raises:
            ModelError: the weights do not exist yet.
            DistributionError: `AutoParallel` has no layout yet, and a layer cannot be without arrays.
        """
        if self._is_listed_by_layers:
            return self._weights_so_far()
        return [variable for variable in self.variables if not isinstance(variable, nnx.RngState)]

    @property
    def _is_listed_by_layers(self) -> bool:
        return self._built is None and (self._is_built or has_built_parts(self) or has_deferred_parts(self))

    def count_params(self) -> int:
        """Count the elements of all weights."""
        plan = plan_before_search(self)
        counted = self.weights if plan is None else [row for row in plan.rows if row.role != "rng"]
        return sum(int(np.prod(one.shape)) for one in counted)

    @property
    def state(self) -> TrainState:
        """A copy of the training state. Later training does not change or delete it."""
        return self._with_weights().cell.copy_of_state()

    @property
    def module(self) -> Any:
        """The module of `from_nnx` with current values; for other models an NNX module with copies.

        Assign a module to set the values.
        """
        return self._with_weights().shown_module()

    @module.setter
    def module(self, module: nnx.Module) -> None:
        self._with_weights().take_values(module)

    def merge(self, trainable: PyTree, rest: PyTree) -> Any:
        """Return the NNX module with values shaped like `state.trainable` and `state.rest`, for a `train_step`.

        Under a mixed policy it casts as in the model's steps.
        """
        session = self._with_weights()
        module, precision = session.cell.graph.merge(trainable, rest), session.forward.precision
        if precision is not None:
            follow(precision, module)
        return module

    def split(self, module: nnx.Module) -> tuple[PyTree, PyTree]:
        """Return the values of a module that `merge` made, as `(trainable, rest)`."""
        return self._with_weights().cell.graph.split(module)

    def stateless_call(
        self, trainable: PyTree, rest: PyTree, *args: Any, return_losses: bool = False, **kwargs: Any
    ) -> tuple[PyTree, ...]:
        """Call the model with these values, for use in a `train_step` or a custom loop.

        Args:
            trainable: values shaped as `state.trainable`, or a list of values for `trainable_variables`.
            rest: values shaped as `state.rest`, or a list of values for `non_trainable_variables`.
            *args: arguments of the call.
            return_losses: whether the losses of layers and regularizers are returned, too.
            **kwargs: further arguments of the call, such as `training`.

        The `call` of a `from_nnx` model gets the same `rngs` in every run of a traced `train_step`; to draw new
        numbers, call it with the module of `merge` and the `rngs` of the step.

        Returns:
            `(outputs, rest)` with `rest` after the call, or `(outputs, rest, losses)`.

        Raises:
            ModelError: the lists of values and variables have different lengths.
        """
        session = self._with_weights(*args, **kwargs)
        if isinstance(trainable, list | tuple):
            listed = (self.trainable_variables, self.non_trainable_variables)
            outputs, rest, losses = session.listed_call(self.name, listed, (trainable, rest), args, kwargs)
        else:
            outputs, rest, losses = session.stateless_call(trainable, rest, args, kwargs)
        return (outputs, rest, losses) if return_losses else (outputs, rest)

    def apply_gradients(self, state: TrainState, grads: PyTree, optimizer: str | None = None) -> TrainState:
        """Return the state after one update, for use in a `train_step`.

        Args:
            state: values and slots before.
            grads: gradients shaped as `state.trainable`, or as the part that the optimizer updates.
            optimizer: the name of one optimizer; by default all are applied.

        Raises:
            ModelError: the optimizer does not exist, or gradients are missing.
        """
        session = self._compiled("apply_gradients")
        return apply_gradients(state, session.optimizers, session.forward.scattered(grads), optimizer)

    @property
    def distribution(self) -> Distribution:
        """The distribution of the model, as it was when its weights were created or moved."""
        return self._with_weights().distribution

    @property
    def layout_plan(self) -> LayoutPlan:
        """The layout of every variable; printed as a table."""
        return self._with_weights().cell.plan

    @property
    def state_plan(self) -> LayoutPlan:
        """The layout of the whole training state: variables, optimizer slots, the step."""
        return self._with_weights().cell.state_plan

    def redistribute(self, distribution: Distribution) -> None:
        """Move the model and its training state to another distribution.

        Raises:
            DistributionError: `distribution` is not a distribution.
            LayoutError: its rules cannot be applied; the model keeps its layouts.
            ModelError: fit is running, or another model shares layers.
        """
        self._check_idle("redistribute")
        self._with_weights().redistribute(check_distribution("distribution", distribution))
        self._runtime.made_under = distribution

    def plan(
        self,
        x: Any = None,
        y: PyTree = None,
        sample_weight: PyTree = None,
        distribution: Distribution | None = None,
        target: str | Target | None = None,
        *,
        remat: str | None = None,
        slot_memory: Literal["pinned_host"] | None = None,
        compiles: bool = True,
        timeout_seconds: float = 600,
        flash_attention: bool = False,
    ) -> PlanReport:
        """Report memory and communication of the train step for a batch, without running it; see `keras_dist.plan`.

        Args:
            x: a batch of inputs: arrays or `jax.ShapeDtypeStruct`s, or a dict, list or tuple of them. By default the
                batch is of the running or last `fit`.
            y: targets of the batch.
            sample_weight: weights of the batch.
            distribution: by default the distribution of the model.
            target: the machine for which the report is made, such as `"v5p:4x4x4"`; `"here"` for the devices of the
                model, if their figures are known.
            remat: replaces `remat` of `compile`.
            slot_memory: replaces `slot_memory` of `compile`.
            compiles: whether the step is compiled for the target.
            timeout_seconds: time limit of the compilation [s].
            flash_attention: whether the machine will compute attention without storing scores; see `keras_dist.plan`.

        Raises:
            ModelError: the model is not compiled; or there is neither a batch nor a `fit`.
        """
        self._check_compiled("plan")
        batch = self._runtime.batch if x is None else (self._prepared(x), y, sample_weight)
        if batch is None:
            fix = "model.plan(x, y), or model.plan() after fit"
            raise ModelError("plan needs a batch", given="x=None, before the first fit", fix=fix)
        if target == "here":
            target = keras_dist.planner.target_of(self.distribution.device_mesh.backend_mesh.devices.flat)
        options: Any = {"target": target, "remat": remat, "compiles": compiles, "timeout_seconds": timeout_seconds}
        options |= {"flash_attention": flash_attention, "slot_memory": slot_memory}
        return keras_dist.plan(self, batch, distribution, **options)
