"""`DistributionMethods`: the variables of a model, their values, and where they live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx

import keras_dist
from keras_dist._support.types import PyTree
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.layers import Layer
from keras_dist.layers.module_precision import follow
from keras_dist.layers.names import layers_in
from keras_dist.models.graph_methods import GraphMethods
from keras_dist.training.optimization import apply_gradients
from keras_dist.training.train_state import TrainState

if TYPE_CHECKING:
    from keras_dist.planner import PlanReport, Target


def has_built_parts(model: Layer) -> bool:
    """Whether a model that has seen no input has weights nevertheless: all of its layers are built."""
    if (
        not isinstance(model, DistributionMethods)
        or model._graph is not None
        or not hasattr(type(model).build, "creates_weights")
    ):
        return False
    layers = layers_in(model)
    return bool(layers) and all(layer.built or has_built_parts(layer) for layer in layers)


class DistributionMethods(GraphMethods):
    """The methods of `Model` that read its variables and state, and say where they live."""

    @property
    def variables(self) -> list[Any]:
        """All variables: the weights and the states of random generators."""
        if self._session is None and (self._is_built or has_built_parts(self)):
            return self._with_states(self._weights_so_far())
        session = self._with_weights()
        return [*session.variables(), *session.generators()]

    @property
    def weights(self) -> list[Any]:
        """The weights, in Keras's order. The keys of random streams are not among them.

        Of a subclass that has seen no input they are the weights of its layers, if all of these are built.

        Raises:
            ModelError: the weights do not exist yet.
        """
        if self._session is None and (self._is_built or has_built_parts(self)):
            return self._weights_so_far()
        return [variable for variable in self.variables if not variable.is_key]

    def count_params(self) -> int:
        """Count the elements of all weights."""
        return sum(int(np.prod(weight.shape)) for weight in self.weights)

    # State, for custom steps and loops

    @property
    def state(self) -> TrainState:
        """A copy of the training state. Later training does not change or delete it."""
        return self._with_weights().cell.copy_of_state()

    @property
    def module(self) -> Any:
        """The module of `from_nnx`, which has the current values; of other models an NNX module with copies of them.

        Assign a module to set them, from the next step on.
        """
        return self._with_weights().shown_module()

    @module.setter
    def module(self, module: nnx.Module) -> None:
        self._with_weights().take_values(module)

    def merge(self, trainable: PyTree, rest: PyTree) -> Any:
        """Return the NNX module with values shaped like `state.trainable` and `state.rest`, for a `train_step`.

        Under a mixed policy its call computes as those of the model's steps do.
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
            rest: values shaped as `state.rest`, or, with that, a list of values for `non_trainable_variables`.
            *args: arguments of the call.
            return_losses: whether the losses that layers and regularizers add are returned, too.
            **kwargs: further arguments of the call, such as `training`.

        The `call` of a `from_nnx` model gets `rngs` that stay the same in every run of a traced `train_step`; to draw
        new numbers, call it with the module of `merge` and the `rngs` of the step.

        Returns:
            `(outputs, rest)` with `rest` after the call, or `(outputs, rest, losses)`.

        Raises:
            ModelError: there are more or fewer values in a list than variables.

        Source: `keras.Model.stateless_call`.
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
            grads: gradients shaped as `state.trainable`, or as the part of it that the optimizer updates.
            optimizer: the name of one optimizer; by default all are applied.

        Raises:
            ModelError: there is no such optimizer, or gradients are missing.
        """
        session = self._compiled("apply_gradients")
        return apply_gradients(state, session.optimizers, session.forward.scattered(grads), optimizer)

    # Where it lives

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
            LayoutError: its rules cannot be applied; the model stays where it was.
            ModelError: fit is running, or another model has some of its layers.
        """
        self._check_idle("redistribute")
        self._with_weights().redistribute(check_distribution("distribution", distribution))
        self._runtime.made_under = distribution

    def plan(
        self,
        x: Any,
        y: PyTree = None,
        sample_weight: PyTree = None,
        distribution: Distribution | None = None,
        target: str | Target | None = None,
        *,
        compiles: bool = True,
        timeout_seconds: float = 600,
    ) -> PlanReport:
        """Say what the train step needs for a batch, without running it; see `keras_dist.plan`.

        Args:
            x: a batch of inputs: arrays or `jax.ShapeDtypeStruct`s, or a dict, list or tuple of them.
            y: its targets.
            sample_weight: its weights.
            distribution: by default that of the model.
            target: the machine it is meant for, such as `"v5p:4x4x4"`.
            compiles: whether the step is compiled for the target.
            timeout_seconds: after which compiling is given up.

        Raises:
            ModelError: the model is not compiled.
        """
        self._check_compiled("plan")
        x = self._prepared(x)
        options: Any = {"target": target, "compiles": compiles, "timeout_seconds": timeout_seconds}
        return keras_dist.plan(self, (x, y, sample_weight), distribution, **options)
