"""`ContentMethods`: the layers, symbolic tensors and variables of a model, its state and their layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from flax import nnx

import keras_dist
from keras_dist._support.types import PyTree, Shape
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.errors import ModelError, NotAvailableError, did_you_mean
from keras_dist.layers import Layer
from keras_dist.layers.base.module_precision import follow
from keras_dist.layers.base.names import layers_in
from keras_dist.models.adapter_methods import AdapterMethods
from keras_dist.models.functional import replaced
from keras_dist.models.initialization import plan_before_search
from keras_dist.symbolic.tensors import KerasTensor
from keras_dist.training.naming import layers_below, named_layers
from keras_dist.training.optimization import TrainState, apply_gradients

if TYPE_CHECKING:
    from keras_dist.planner import PlanReport, Target


def has_built_parts(model: Layer) -> bool:
    """Whether a model without inputs has weights because all of its layers are built."""
    if (
        not isinstance(model, ContentMethods)
        or model._graph is not None
        or not hasattr(type(model).build, "creates_weights")
    ):
        return False
    layers = layers_in(model)
    return bool(layers) and all(layer.built or has_built_parts(layer) for layer in layers)


def has_deferred_parts(model: ContentMethods) -> bool:
    """Whether the layers have all variables of a model with known inputs that awaits its layout from `AutoParallel`."""
    is_awaiting = model._awaits_layout is not None and model._graph is not None
    layers = (layer for _, layer in layers_below(model) if not hasattr(type(layer).build, "creates_weights"))
    return is_awaiting and all(layer._is_built or layer._needs_no_building() for layer in layers)


class ContentMethods(AdapterMethods):
    """The methods of `Model` for its layers and symbolic tensors, its variables and state, and their layouts."""

    @property
    def layers(self) -> list[Layer]:
        """The layers: in the graph of a functional model, in order, or in the attributes of a subclass."""
        if self._graph is not None:
            return [*self._graph.starts, *layers_in(self._members)]
        return named_layers(self)

    @property
    def operations(self) -> list[Any]:
        """Inputs, layers and operations in the graph of a functional model, in order; else the layers."""
        if self._graph is None:
            return list(self.layers)
        return [step.operation for step in self._graph.steps]

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """Return the layer with this name, or at this index of `layers`.

        Raises:
            ModelError: the layer does not exist, or not exactly one argument is given.
        """
        layers = self.layers
        if (name is None) == (index is None):
            summary = "get_layer needs a name or an index"
            raise ModelError(summary, given=f"name={name!r}, index={index!r}", fix='for example get_layer("d1")')
        if index is not None and -len(layers) <= index < len(layers):
            return layers[index]
        named = {layer.name: layer for layer in reversed(layers)} | dict(vars(self).get("_members", {}))
        if name in named:
            return named[name]
        names = [layer.name for layer in layers]
        summary = f"unknown layer {name if index is None else index!r}{did_you_mean(name or '', names)}"
        given = f"get_layer({name!r})" if index is None else f"get_layer(index={index})"
        raise ModelError(summary, given=given, fix=f"correct it: the layers are {names}")

    @property
    def inputs(self) -> list[KerasTensor]:
        """The symbolic inputs of a functional model, as a list."""
        return jax.tree.leaves(self.input)

    @property
    def outputs(self) -> list[KerasTensor]:
        """The symbolic outputs of a functional model, as a list."""
        return jax.tree.leaves(self.output)

    @property
    def input(self) -> PyTree:
        """The symbolic inputs of a functional model, as they were given."""
        return self._symbols_or_raise()[0]

    @property
    def output(self) -> PyTree:
        """The symbolic outputs of a functional model, as they were given."""
        return self._symbols_or_raise()[1]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs of a functional model."""
        return [tensor.name for tensor in self.inputs]

    @property
    def output_names(self) -> list[str] | None:
        """The names of the layers that compute the outputs of a functional model; None for other models.

        If the outputs are a dict, its keys name losses and metrics instead. A model of `from_keras` has Keras's names.
        """
        if self._record.keras_model is not None:
            return self._record.keras_model.output_names
        return list(self._graph.output_names) if self._graph is not None else None

    @property
    def input_shape(self) -> PyTree:
        """The shape of the input of a functional model; a list of shapes for several inputs."""
        return _one_or_all([tensor.shape for tensor in self.inputs])

    @property
    def output_shape(self) -> PyTree:
        """The shape of the output of a functional model; a list of shapes for several outputs."""
        return _one_or_all([tensor.shape for tensor in self.outputs])

    @property
    def is_host_side(self) -> bool:  # type: ignore[override]
        """Whether all layers run on the host."""
        return self._graph is not None and bool(self._graph.host_nodes) and not self._graph.on_devices.nodes

    @property
    def _symbols(self) -> tuple[PyTree, PyTree] | None:
        return None if self._graph is None else (self._graph.inputs, self._graph.outputs)

    def transform(self, inputs: PyTree, **options: Any) -> PyTree:
        """Return the outputs of a model whose layers all run on the host, as numpy arrays."""
        graph: Any = self._graph
        return replaced(graph.outputs, graph.run_on_host(inputs))

    def output_like(self, inputs: PyTree, **options: Any) -> PyTree:
        """Return symbolic tensors like the outputs of a model whose layers all run on the host."""
        return jax.tree.map(lambda tensor: KerasTensor(tensor.shape, tensor.dtype), self._symbols_or_raise()[1])

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
        self._record.made_under = distribution

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
        batch = self._record.batch if x is None else (self._prepared(x), y, sample_weight)
        if batch is None:
            fix = "model.plan(x, y), or model.plan() after fit"
            raise ModelError("plan needs a batch", given="x=None, before the first fit", fix=fix)
        if target == "here":
            target = keras_dist.planner.target_of(self.distribution.device_mesh.backend_mesh.devices.flat)
        options: Any = {"target": target, "remat": remat, "compiles": compiles, "timeout_seconds": timeout_seconds}
        options |= {"flash_attention": flash_attention, "slot_memory": slot_memory}
        return keras_dist.plan(self, batch, distribution, **options)

    def _symbols_or_raise(self) -> tuple[PyTree, PyTree]:
        symbols = self._symbols
        if symbols is not None:
            return symbols
        if self._record.nodes:  # of the first call as a layer of another model
            return self._record.nodes[0].inputs, self._record.nodes[0].outputs
        summary = f"model {self.name!r} has no symbolic inputs and outputs"
        given = f"a {type(self).__name__} that was not made from symbolic tensors"
        raise NotAvailableError(summary, given=given, fix="call it on Input(shape) and make a Model of the two")

    def _check_one_side(self) -> None:
        if self._graph is not None and self._graph.host_nodes and not self.is_host_side:
            names = ", ".join(repr(node.operation.name) for node in self._graph.host_nodes)
            summary = f"model {self.name!r} cannot be a layer: it begins with layers that run on the host"
            fix = "make a model of each part, and call the second on what the first gives"
            raise ModelError(summary, given=f"{names}, then layers that run on devices", fix=fix)


def _one_or_all(shapes: list[Shape]) -> PyTree:
    return shapes[0] if len(shapes) == 1 else shapes
