"""The layers of a model, its symbolic tensors and its variables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist._support.types import PyTree, Shape
from keras_dist.errors import ModelError, NotAvailableError, did_you_mean
from keras_dist.layers import Layer
from keras_dist.layers.base.names import layers_below, layers_in, named_layers
from keras_dist.models.abstract_models import plan_before_search
from keras_dist.models.functional import replaced
from keras_dist.models.model_base import ModelBase
from keras_dist.symbolic.tensors import KerasTensor


def layers(model: ModelBase) -> list[Layer]:
    """The layers: in the graph of a functional model, in order, or in the attributes of a subclass."""
    if model._graph is not None:
        return [*model._graph.starts, *layers_in(model._members)]
    return named_layers(model)


def operations(model: ModelBase) -> list[Any]:
    """Inputs, layers and operations in the graph of a functional model, in order; else the layers."""
    if model._graph is None:
        return list(model.layers)
    return [step.operation for step in model._graph.steps]


def get_layer(model: ModelBase, name: str | None = None, index: int | None = None) -> Layer:
    """Return the layer with this name, or at this index of `layers`.

    Raises:
        ModelError: the layer does not exist, or not exactly one argument is given.
    """
    layers = model.layers
    if (name is None) == (index is None):
        summary = "get_layer needs a name or an index"
        raise ModelError(summary, given=f"name={name!r}, index={index!r}", fix='for example get_layer("d1")')
    if index is not None and -len(layers) <= index < len(layers):
        return layers[index]
    named = {layer.name: layer for layer in reversed(layers)} | dict(vars(model).get("_members", {}))
    if name in named:
        return named[name]
    names = [layer.name for layer in layers]
    summary = f"unknown layer {name if index is None else index!r}{did_you_mean(name or '', names)}"
    given = f"get_layer({name!r})" if index is None else f"get_layer(index={index})"
    raise ModelError(summary, given=given, fix=f"correct it: the layers are {names}")


def inputs(model: ModelBase) -> list[KerasTensor]:
    """The symbolic inputs of a functional model, as a list."""
    return jax.tree.leaves(model.input)


def outputs(model: ModelBase) -> list[KerasTensor]:
    """The symbolic outputs of a functional model, as a list."""
    return jax.tree.leaves(model.output)


def input(model: ModelBase) -> PyTree:
    """The symbolic inputs of a functional model, as they were given."""
    return _symbols_or_raise(model)[0]


def output(model: ModelBase) -> PyTree:
    """The symbolic outputs of a functional model, as they were given."""
    return _symbols_or_raise(model)[1]


def input_names(model: ModelBase) -> list[str]:
    """The names of the inputs of a functional model."""
    return [tensor.name for tensor in model.inputs]


def output_names(model: ModelBase) -> list[str] | None:
    """The names of the layers that compute the outputs of a functional model; None for other models.

    If the outputs are a dict, its keys name losses and metrics instead. A model of `from_keras` has Keras's names.
    """
    if model._record.keras_model is not None:
        return model._record.keras_model.output_names
    return list(model._graph.output_names) if model._graph is not None else None


def input_shape(model: ModelBase) -> PyTree:
    """The shape of the input of a functional model; a list of shapes for several inputs."""
    return _one_or_all([tensor.shape for tensor in model.inputs])


def output_shape(model: ModelBase) -> PyTree:
    """The shape of the output of a functional model; a list of shapes for several outputs."""
    return _one_or_all([tensor.shape for tensor in model.outputs])


def is_host_side(model: ModelBase) -> bool:  # type: ignore[override]
    """Whether all layers run on the host."""
    return model._graph is not None and bool(model._graph.host_nodes) and not model._graph.on_devices.nodes


def transform(model: ModelBase, inputs: PyTree, **options: Any) -> PyTree:
    """Return the outputs of a model whose layers all run on the host, as numpy arrays."""
    graph: Any = model._graph
    return replaced(graph.outputs, graph.run_on_host(inputs))


def output_like(model: ModelBase, inputs: PyTree, **options: Any) -> PyTree:
    """Return symbolic tensors like the outputs of a model whose layers all run on the host."""
    return jax.tree.map(lambda tensor: KerasTensor(tensor.shape, tensor.dtype), _symbols_or_raise(model)[1])


def variables(model: ModelBase) -> list[Any]:
    """All variables: the weights and the states of random generators."""
    if _is_listed_by_layers(model):
        return model._with_states(model._weights_so_far())
    built = model._with_weights()
    return [*built.variables(), *built.generators()]


def weights(model: ModelBase) -> list[Any]:
    """The weights in Keras's order, without keys of random streams.

    A subclass that was not called yet has the weights of its layers, if all of them are built. Under
    `AutoParallel`, the weights of a model that knows its inputs are deferred variables until `fit`.

    Raises:
        ModelError: the weights do not exist yet.
        DistributionError: `AutoParallel` has no layout yet, and a layer cannot be without arrays.
    """
    if _is_listed_by_layers(model):
        return model._weights_so_far()
    return [variable for variable in model.variables if not isinstance(variable, nnx.RngState)]


def _is_listed_by_layers(model: ModelBase) -> bool:
    return model._built is None and (model._is_built or _has_built_parts(model) or _has_deferred_parts(model))


def _has_built_parts(model: Layer) -> bool:
    """Whether a model without inputs has weights because all of its layers are built."""
    if not isinstance(model, ModelBase) or model._graph is not None or not model._creates_weights():
        return False
    layers = layers_in(model)
    return bool(layers) and all(layer.built or _has_built_parts(layer) for layer in layers)


def _has_deferred_parts(model: ModelBase) -> bool:
    """Whether the layers have all variables of a model with known inputs that awaits its layout from `AutoParallel`."""
    is_awaiting = model._awaits_layout is not None and model._graph is not None
    layers = (layer for _, layer in layers_below(model) if not layer._creates_weights())
    return is_awaiting and all(layer._is_built or layer._needs_no_building() for layer in layers)


def count_params(model: ModelBase) -> int:
    """Count the elements of all weights."""
    plan = plan_before_search(model)
    counted = model.weights if plan is None else [row for row in plan.rows if row.role != "rng"]
    return sum(int(np.prod(one.shape)) for one in counted)


def _symbols_or_raise(model: ModelBase) -> tuple[PyTree, PyTree]:
    symbols = model._symbols
    if symbols is not None:
        return symbols
    if model._record.nodes:  # of the first call as a layer of another model
        return model._record.nodes[0].inputs, model._record.nodes[0].outputs
    summary = f"model {model.name!r} has no symbolic inputs and outputs"
    given = f"a {type(model).__name__} that was not made from symbolic tensors"
    raise NotAvailableError(summary, given=given, fix="call it on Input(shape) and make a Model of the two")


def _one_or_all(shapes: list[Shape]) -> PyTree:
    return shapes[0] if len(shapes) == 1 else shapes
