"""`clone_model`: copy the architecture of a model, with new layers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree, Shape
from keras_dist.adapters.quantizing import modes_of
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.layers import Input, Layer
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.layers.base.weights import children_of
from keras_dist.models.config import arguments_but, is_of_graph, named
from keras_dist.models.functional import replaced
from keras_dist.models.model import Model
from keras_dist.models.model_distribution import on_mesh_of
from keras_dist.models.sequential import Sequential, takes_layers
from keras_dist.models.weight_creation import create_weights
from keras_dist.serialization import deserialize_keras_object, serialize_keras_object
from keras_dist.serialization.object_configs import lambdas_kept
from keras_dist.serialization.shared_objects import SharedObjects
from keras_dist.symbolic.tensors import KerasTensor, Operation


def clone_model(
    model: Model,
    input_tensors: PyTree = None,
    clone_function: Callable[[Layer], Layer] | None = None,
    call_function: Callable[..., PyTree] | None = None,
    recursive: bool = False,
) -> Model:
    """Create the same model with new layers and new weights, with the same paths, on the current distribution.

    The clone is compiled like the model, and has the same adapters, untrained. Functional models and `Sequential`s are
    cloned layer by layer; other models are created again with the arguments of their constructor.

    Args:
        model: a model, except a model of `from_nnx`.
        input_tensors: symbolic tensors that replace the inputs, in the same structure or as a list; one tensor for a
            `Sequential`, also if it has no `Input`.
        clone_function: `clone_function(layer) -> layer`; by default the layer is created again with its arguments.
        call_function: `call_function(layer, *args, **kwargs)`, which calls each layer of a functional model.
        recursive: whether functional models and `Sequential`s among the layers are cloned in the same way.

    Raises:
        ConfigError: the arguments of a layer cannot be serialized.
        ModelError: an argument does not fit the model.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers, models
        >>> model = kd.Sequential([kd.Input((8,)), layers.Dense(3)])
        >>> clone = models.clone_model(model)
        >>> clone.set_weights(model.get_weights())
    """
    if not isinstance(model, Model):
        check_is_ours("clone_model: `model`", model)
        expected = "a Model; a layer is cloned by type(layer).from_config(layer.get_config())"
        raise argument_error("model", model, expected)
    if call_function is not None and not _is_functional(model):
        raise _misfit("call_function", call_function, model, "a functional model")
    with on_mesh_of(model):
        clone = _cloned(model, input_tensors, clone_function, call_function, recursive)
    for path, mode in {} if model._built is None else modes_of(model._built).items():
        clone.quantize(mode, re.escape(path))
    if model._record.adapters is not None:
        clone._with_weights()
        clone.enable_lora(**model._record.adapters.arguments())
    config = model._record.compile_config
    if config is not None:
        # an optimizer trains one model
        clone.compile(**{**config.arguments, "optimizer": copy.deepcopy(config.arguments["optimizer"])})
    return clone


def _cloned(
    model: Model,
    input_tensors: PyTree,
    clone_function: Callable[[Layer], Layer] | None,
    call_function: Callable[..., PyTree] | None,
    recursive: bool,
) -> Model:
    if not _is_functional(model) and not _is_sequential(model):
        for name, value in (("input_tensors", input_tensors), ("clone_function", clone_function)):
            if value is not None:
                raise _misfit(name, value, model, "a functional model, or a Sequential")
        return _made_again(model)
    # without functions inner models are cloned layer by layer, too, so that shared layers stay shared
    called = call_function or _called
    cloning = _Cloning(clone_function, called if recursive else _called, recursive or not clone_function)
    return cloning.clone(model, called, input_tensors)


@dataclasses.dataclass
class _Cloning:
    """Clones each layer once; `clones` are the clones by id of the layer, `shared` also layers inside of others."""

    clone_function: Callable[[Layer], Layer] | None
    inner_call_function: Callable[..., PyTree]
    is_deep: bool
    clones: dict[int, Layer] = dataclasses.field(default_factory=dict)
    shared: SharedObjects = dataclasses.field(default_factory=lambda: SharedObjects(numbers_all=True))

    def clone(self, model: Model, call_function: Callable[..., PyTree], input_tensors: PyTree = None) -> Model:
        """Return the model with new layers."""
        graph = model._graph
        steps, nodes = (graph.steps, graph.nodes) if graph is not None else ((), ())
        inputs = [named(_made_again(step.operation), step.name).output for step in steps if not step.nodes]
        if input_tensors is not None:
            if graph is not None and _keys(input_tensors) != _keys(model.input):
                summary = "clone_model: `input_tensors` must have the same structure as model.input"
                fix = f"pass tensors in the structure {jax.tree.map(lambda tensor: tensor.name, model.input)}"
                raise ModelError(summary, given=shorten(input_tensors), fix=fix)
            inputs = _checked(input_tensors, [tensor.shape[1:] for tensor in inputs] if graph is not None else [(8,)])
        if _is_sequential(model):
            starts = [one.node is not None and not one.node.args for one in inputs]
            inputs = [
                one if starts_here else Input(batch_shape=one.shape, dtype=one.dtype)
                for one, starts_here in zip(inputs, starts, strict=True)
            ]
            clones = {name: self._clone_layer(layer, str(name)) for name, layer in children_of(model._members)}
            layers = [clones[name] for name in model._chain.names]
            clone = type(model)(layers=[*inputs, *layers], **arguments_but(model, "layers"))
            if graph is None and not inputs and model._record.built_for is not None:
                create_weights(clone, (model._record.built_for,), {})
            return clone
        values = dict(zip(map(id, model.inputs), inputs, strict=True))
        names = {id(step.operation): step.name for step in steps}
        for node in nodes:
            args, kwargs = replaced((node.args, node.kwargs), values)
            if isinstance(node.operation, Operation):
                outputs = node.operation(*args, **kwargs)
            else:
                outputs = call_function(self._clone_layer(node.operation, names[id(node.operation)]), *args, **kwargs)
            values |= zip(map(id, jax.tree.leaves(node.outputs)), jax.tree.leaves(outputs), strict=True)
        inputs, outputs = replaced((model.input, model.output), values)
        return type(model)(inputs=inputs, outputs=outputs, **arguments_but(model, "inputs", "outputs", "*args"))

    def _clone_layer(self, layer: Any, name: str) -> Any:
        if id(layer) not in self.clones:
            is_inner = self.is_deep and (_is_sequential(layer) or _is_functional(layer))
            again = self.clone_function or functools.partial(_made_again, shared=self.shared)
            clone = self.clone(layer, self.inner_call_function) if is_inner else again(layer)
            if not isinstance(clone, Layer):
                summary = "clone_model: `clone_function` does not return a layer"
                fix = "return type(layer).from_config(layer.get_config()), or the layer itself"
                raise ModelError(summary, given=f"{with_type(clone)} for layer {layer.name!r}", fix=fix)
            is_ours = is_inner or self.clone_function is None  # a function chooses names itself
            self.clones[id(layer)] = named(clone, name) if is_ours else clone
        return self.clones[id(layer)]


def _is_functional(model: Layer) -> bool:
    return isinstance(model, Model) and is_of_graph(model)


def _is_sequential(model: Layer) -> bool:
    return isinstance(model, Sequential) and takes_layers(type(model))


def _made_again(layer: Any, shared: SharedObjects | None = None) -> Any:
    """Return a layer of the same class, registered or not, with the same arguments."""
    cls, shared = type(layer), shared or SharedObjects()
    with lambdas_kept(), shared.writing():
        written = serialize_keras_object(layer)
    with shared.reading():
        return deserialize_keras_object(written, {cls.__name__: cls})


def _called(layer: Layer, *args: Any, **kwargs: Any) -> PyTree:
    return layer(*args, **kwargs)


def _checked(input_tensors: PyTree, shapes: list[Shape]) -> list[KerasTensor]:
    """Return `input_tensors` as a list, with one tensor for each of these shapes of examples."""
    given = jax.tree.leaves(input_tensors)
    if len(given) != len(shapes) or not all(isinstance(tensor, KerasTensor) for tensor in given):
        summary = "clone_model: `input_tensors` must be a symbolic tensor for each input of the model"
        fix = f"for example {', '.join(f'Input({shape})' for shape in shapes)}"
        raise ModelError(summary, given=shorten(input_tensors), fix=fix)
    return given


def _keys(tree: PyTree) -> list[Any] | None:
    return sorted(tree) if isinstance(tree, Mapping) else None


def _misfit(argument: str, value: Any, model: Model, expected: str) -> ModelError:
    summary = f"clone_model: `{argument}` does not go with this model"
    given = f"{argument}={shorten(value)} and a {type(model).__name__}"
    return ModelError(summary, given=given, expected=expected, fix=f"leave {argument} out")
