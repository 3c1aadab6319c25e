"""Conversion of models and arguments of `compile` to configs in the form of Keras and back."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import jax

from keras_dist._support.types import PyTree
from keras_dist.errors import ConfigError, ModelError, shorten
from keras_dist.layers import InputLayer, Layer
from keras_dist.models.functional import Graph, GraphStep
from keras_dist.models.model_base import ModelBase
from keras_dist.ops import OPERATIONS
from keras_dist.serialization import custom_object_scope, deserialize_keras_object, serialize_keras_object
from keras_dist.serialization.shared_objects import one_config_read, one_config_written
from keras_dist.symbolic.tensors import KerasTensor, Node, Operation

Made = TypeVar("Made", bound=ModelBase)

_GRAPH = {"layers", "input_layers", "output_layers"}
_TENSOR = "__keras_tensor__"
_ANY_LISTED, _ANY_NAMED = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_OF_GRAPH = ("inputs", "outputs", "*args")
_OPERATION = {"module": "keras_dist.layers", "class_name": "Operation", "registered_name": None}


def takes_graph(cls: type) -> bool:
    """Return whether the constructor of a class accepts symbolic inputs and outputs."""
    parameters = inspect.signature(cls.__init__).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    return {"inputs", "outputs"} <= {*parameters} or {_ANY_LISTED, _ANY_NAMED} <= kinds


def is_of_graph(model: ModelBase) -> bool:
    """Return whether the model's constructor got symbolic inputs and outputs."""
    return model._graph is not None and takes_graph(type(model)) and any(name in model._arguments for name in _OF_GRAPH)


def arguments_but(model: ModelBase, *names: str) -> dict[str, Any]:
    """Return the model's constructor arguments except `names`, with the current name and `trainable`."""
    others = {name: value for name, value in model._arguments.items() if name not in names}
    return others | {"name": model.name, "trainable": model.trainable}


def check_not_of_keras(model: ModelBase) -> None:
    """Raise for a model of `from_keras`, which only Keras can save."""
    if model._record.keras_model is not None:
        given = f"model {model.name!r}, which wraps a keras.Model"
        fix = 'model.to_keras().save("model.keras"); or kd.checkpoint.CheckpointManager(model, directory).save()'
        raise ModelError("a model that from_keras made is saved by Keras", given=given, fix=fix)


def check_described(model: ModelBase) -> None:
    """Check that a model consists of layers, which a config can describe."""
    check_not_of_keras(model)
    if not model._may_add_losses:
        fix = "keep the code that makes the module, and call Model.from_nnx again"
        raise ConfigError("a model of a flax.nnx module has no config", given="a model that from_nnx made", fix=fix)


def graph_config(model: ModelBase) -> dict[str, Any]:
    """Return the config of a functional model: layers, their calls, and the origins of inputs and outputs."""
    graph: Any = model._graph

    def places_of(tree: PyTree) -> PyTree:
        return serialize_keras_object(jax.tree.map(lambda tensor: list(graph.places[id(tensor)]), tree))

    others = serialize_keras_object(arguments_but(model, *_OF_GRAPH))
    with one_config_written():
        return others | {
            "layers": [_write_step(step, graph) for step in graph.steps],
            "input_layers": places_of(graph.inputs),
            "output_layers": places_of(graph.outputs),
        }


def with_graph(cls: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the graph in a config by symbolic inputs and outputs."""
    if not (takes_graph(cls) and {*config} >= _GRAPH):
        return dict(config)
    inputs, outputs = _read_graph(config)
    others = {name: value for name, value in config.items() if name not in _GRAPH}
    return {**others, "inputs": inputs, "outputs": outputs}


def written_argument(name: str, value: Any) -> Any:
    """Convert an argument of `compile` to plain values from which it can be created."""
    try:
        written = serialize_keras_object(value)
        deserialize_keras_object(written)
    except ConfigError as error:
        summary = f"get_compile_config: `{name}` cannot be serialized: {error.summary}"
        fix = "@saving.register_keras_serializable() on it; for optax use or subclass keras_dist.optimizers.Optimizer"
        raise ConfigError(summary, given=f"{name}={shorten(value)}", fix=fix) from error
    return written


def write_layer(layer: Layer, name: str) -> dict[str, Any]:
    """Return the config of a layer, with its name in the model."""
    written = serialize_keras_object(layer)
    written["name"] = name
    if "name" in written["config"]:
        written["config"]["name"] = name
    return written


def read_layer(config: Any) -> Layer:
    """Create the layer of a config that `write_layer` has returned."""
    layer = deserialize_keras_object(config)
    if not isinstance(layer, Layer):
        summary = "the config of a model contains an entry that is not a layer"
        raise ConfigError(summary, given=shorten(config), fix="write it again with model.get_config()")
    is_named = bool(layer._record.nodes)  # by a model that shares it
    return layer if is_named else named(layer, config.get("name", layer.name))


def named(layer: Layer, name: str) -> Layer:
    """Set the name of a layer; models append a number if the name is taken."""
    layer._base_name = layer._name = name
    return layer


def _read_graph(config: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
    """Create layers, and symbolic inputs and outputs, from the result of `graph_config`."""
    tensors = _Tensors()
    waiting = [_read_step(entry, tensors) for entry in config["layers"]]
    while waiting := [step for step in waiting if step.calls]:
        if not any(step.try_call(tensors) for step in waiting):
            summary = "the config of a functional model cannot be read: its calls depend on missing tensors"
            fix = "write it again with model.get_config(), or correct `inbound_nodes`"
            raise ConfigError(summary, given=f"calls of {', '.join(repr(step.name) for step in waiting)}", fix=fix)
    return tensors.arranged(config["input_layers"]), tensors.arranged(config["output_layers"])


class _NotYet(Exception):
    """No call has computed this tensor yet."""


class _Tensors:
    """The tensors of a graph that is being read, by their origins."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], KerasTensor] = {}  # by `Place`

    def add(self, name: str, call: int, outputs: PyTree) -> None:
        self._found |= {(name, call, index): leaf for index, leaf in enumerate(jax.tree.leaves(outputs))}

    def from_config(self, config: dict[str, Any]) -> KerasTensor:
        """Return the tensor of a config in the arguments of a call."""
        place = tuple(config.get("keras_history") or ())
        if place not in self._found:
            raise _NotYet
        return self._found[place]

    def arranged(self, places: PyTree) -> PyTree:
        """Return the tensors at these places, in the same structure."""
        if isinstance(places, Mapping) and places.get("class_name") == "__tuple__":
            return tuple(self.arranged(item) for item in places["config"]["value"])
        if isinstance(places, Mapping):
            return {name: self.arranged(item) for name, item in places.items()}
        if not isinstance(places, list) or [type(item) for item in places] != [str, int, int]:
            return [self.arranged(item) for item in places]
        if tuple(places) not in self._found:
            summary = "the config of a functional model contains an input or output that no call computes"
            fix = "write it again with model.get_config(), or correct `input_layers` and `output_layers`"
            raise ConfigError(summary, given=shorten(places), fix=fix)
        return self._found[tuple(places)]


@dataclasses.dataclass
class _ReadStep:
    """A layer or operation that is being read; `calls` are the configs of its remaining calls."""

    name: str
    operation: Layer | Operation
    calls: list[Any]
    made: int = 0

    def try_call(self, tensors: _Tensors) -> bool:
        """Make the next call if its arguments exist; return whether it was made."""
        try:
            arguments = deserialize_keras_object(self.calls[0], {_TENSOR: tensors})
        except _NotYet:
            return False
        tensors.add(self.name, self.made, self.operation(*arguments["args"], **arguments["kwargs"]))
        self.calls, self.made = self.calls[1:], self.made + 1
        return True


def _write_step(step: GraphStep, graph: Graph) -> dict[str, Any]:
    if isinstance(step.operation, Operation):
        written: dict[str, Any] = {**_OPERATION, "config": {"name": step.operation.name}, "name": step.name}
    else:
        written = write_layer(step.operation, step.name)
    written["inbound_nodes"] = [_write_call(node, graph) for node in step.nodes]
    return written


def _write_call(node: Node, graph: Graph) -> dict[str, Any]:
    def place_of(leaf: Any) -> Any:
        if not isinstance(leaf, KerasTensor):
            return leaf
        history = list(graph.places[id(leaf)])
        return {
            "class_name": _TENSOR,
            "config": {"shape": list(leaf.shape), "dtype": leaf.dtype, "keras_history": history},
        }

    args, kwargs = jax.tree.map(place_of, (node.args, node.kwargs))
    return {"args": serialize_keras_object(args), "kwargs": serialize_keras_object(kwargs)}


def _read_step(entry: Any, tensors: _Tensors) -> _ReadStep:
    calls = entry.get("inbound_nodes") if isinstance(entry, Mapping) else None
    is_read = isinstance(calls, list)
    if not is_read or not all(isinstance(call, Mapping) and {"args", "kwargs"} <= {*call} for call in calls):
        summary = "a layer in the config of a functional model cannot be read"
        raise ConfigError(summary, given=shorten(entry), fix="write it again with model.get_config()")
    if {**entry, **_OPERATION} == entry:
        name = entry["config"].get("name")
        if name not in OPERATIONS:
            summary = f"the config of a functional model contains the unknown operation {shorten(name)}"
            raise ConfigError(summary, given=shorten(entry), fix="write it again with model.get_config()")
        operation: Layer | Operation = Operation(name)
    else:
        operation = read_layer(entry)
    if isinstance(operation, InputLayer):
        tensors.add(entry["name"], 0, operation.output)
    return _ReadStep(entry["name"], operation, calls)


def get_config(model: ModelBase) -> dict[str, Any]:
    """Return the model without its weights as plain values that JSON can represent.

    The config of a functional model contains its layers and calls, as in Keras; for other models it contains the
    arguments of the constructor. Explicit layouts are lists of axes. `from_config` finds registered subclasses. A
    subclass whose constructor takes more than plain values overrides `get_config` and `from_config`.

    Raises:
        ConfigError: a layer or an argument cannot be serialized.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers
        >>> inputs = kd.Input((8,), name="x")
        >>> model = kd.Model(inputs, layers.Dense(3, name="d1")(inputs))
        >>> again = kd.Model.from_config(model.get_config())
        >>> [weight.path for weight in again.weights]
        ['d1/kernel', 'd1/bias']
    """
    if not is_of_graph(model):
        check_described(model)
        with one_config_written():
            return super(ModelBase, model).get_config()
    return graph_config(model)


def from_config(cls: type[Made], config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Made:
    """Create a model from the result of `get_config`, with new weights on the current distribution.

    Args:
        config: plain values.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        ConfigError: the config is damaged, or names a class or function that is not registered.
    """
    with custom_object_scope(custom_objects), one_config_read():
        return super(ModelBase, cls).from_config(with_graph(cls, config))


def to_json(model: ModelBase, **kwargs: Any) -> str:
    """Return the model without its weights as JSON, which `models.model_from_json` reads.

    Args:
        **kwargs: arguments of `json.dumps`.

    Raises:
        ConfigError: a layer or an argument cannot be serialized.
    """
    with one_config_written():
        return json.dumps(serialize_keras_object(model), **kwargs)
