"""Models, and what `compile` chose, as configs of plain values and back, in the form of Keras."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax

from keras_dist._support.types import PyTree
from keras_dist.errors import ConfigError, ModelError, shorten
from keras_dist.layers import InputLayer, Layer
from keras_dist.models.functional import Graph, Step
from keras_dist.ops import OPERATIONS
from keras_dist.saving import deserialize_keras_object, serialize_keras_object
from keras_dist.symbolic.tensors import KerasTensor, Node, Operation

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods

_GRAPH = {"layers", "input_layers", "output_layers"}
_TENSOR = "__keras_tensor__"
_ANY_LISTED, _ANY_NAMED = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_OF_GRAPH = ("inputs", "outputs", "*args")
_OPERATION = {"module": "keras_dist.layers", "class_name": "Operation", "registered_name": None}


@dataclasses.dataclass
class _Shared:
    """Layers that models within one config may share: as first written, by id, and as read, by number."""

    written: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    read: dict[Any, Layer] = dataclasses.field(default_factory=dict)


_shared: contextvars.ContextVar[_Shared | None] = contextvars.ContextVar("shared", default=None)


@contextlib.contextmanager
def one_config() -> Iterator[None]:
    """Inside, layers that models within models share are written as shared, and are read as one layer."""
    token = _shared.set(_shared.get() or _Shared())
    try:
        yield
    finally:
        _shared.reset(token)


def takes_graph(cls: type) -> bool:
    """Whether a model of this class is made of symbolic inputs and outputs, or hands over whatever it is given."""
    parameters = inspect.signature(cls.__init__).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    return {"inputs", "outputs"} <= {*parameters} or {_ANY_LISTED, _ANY_NAMED} <= kinds


def is_of_graph(model: SavingMethods) -> bool:
    """Whether a model was made of symbolic inputs and outputs, which its constructor was given."""
    return model._graph is not None and takes_graph(type(model)) and any(name in model._arguments for name in _OF_GRAPH)


def arguments_but(model: SavingMethods, *names: str) -> dict[str, Any]:
    """The other arguments of a model's constructor, with its name and whether it is trained as they are now."""
    others = {name: value for name, value in model._arguments.items() if name not in names}
    return others | {"name": model.name, "trainable": model.trainable}


def check_not_of_keras(model: SavingMethods) -> None:
    """Check that a model was not made by `from_keras`: Keras itself saves those."""
    if model._runtime.keras_model is not None:
        given = f"model {model.name!r}, which wraps a keras.Model"
        fix = 'model.to_keras().save("model.keras"); or kd.checkpoint.CheckpointManager(model, directory).save()'
        raise ModelError("a model that from_keras made is saved by Keras", given=given, fix=fix)


def check_described(model: SavingMethods) -> None:
    """Check that a model is made of layers, which a config describes."""
    check_not_of_keras(model)
    if not model._may_add_losses:
        summary = "a model of a flax.nnx module cannot be written down in a config"
        fix = "keep the code that makes the module, and call Model.from_nnx again"
        raise ConfigError(summary, given="a model that from_nnx made", fix=fix)


def graph_config(model: SavingMethods) -> dict[str, Any]:
    """Return a functional model as plain values: layers with their calls, and where inputs and outputs come from."""
    graph: Any = model._graph

    def places_of(tree: PyTree) -> PyTree:
        return serialize_keras_object(jax.tree.map(lambda tensor: list(graph.places[id(tensor)]), tree))

    others = serialize_keras_object(arguments_but(model, *_OF_GRAPH))
    with one_config():
        return others | {
            "layers": [_write_step(step, graph) for step in graph.steps],
            "input_layers": places_of(graph.inputs),
            "output_layers": places_of(graph.outputs),
        }


def with_graph(cls: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with symbolic inputs and outputs in the place of a graph that is written down in it."""
    if not (takes_graph(cls) and {*config} >= _GRAPH):
        return dict(config)
    inputs, outputs = _read_graph(config)
    others = {name: value for name, value in config.items() if name not in _GRAPH}
    return {**others, "inputs": inputs, "outputs": outputs}


def written_argument(name: str, value: Any) -> Any:
    """An argument of `compile` as plain values, which are known to be readable."""
    try:
        written = serialize_keras_object(value)
        deserialize_keras_object(written)
    except ConfigError as error:
        summary = f"get_compile_config: `{name}` cannot be written down: {error.summary}"
        fix = "@saving.register_keras_serializable() on it; for optax use or subclass keras_dist.optimizers.Optimizer"
        raise ConfigError(summary, given=f"{name}={shorten(value)}", fix=fix) from error
    return written


def write_layer(layer: Layer, name: str) -> dict[str, Any]:
    """A layer as plain values, under the name that it has in a model."""
    written = {**serialize_keras_object(layer), "name": name}
    if "name" in written["config"]:
        written["config"]["name"] = name
    shared = _shared.get()
    if shared is None or isinstance(layer, InputLayer):
        return written  # inputs have nothing to share
    first = shared.written.setdefault(id(layer), written)
    if first is not written:
        count = sum("shared_object_id" in entry for entry in shared.written.values())
        written["shared_object_id"] = first.setdefault("shared_object_id", count + 1)
    return written


def read_layer(config: Any) -> Layer:
    """The layer that `write_layer` has written down."""
    number = config.get("shared_object_id") if isinstance(config, Mapping) else None
    shared = _shared.get()
    if shared is not None and number in shared.read:
        return shared.read[number]
    layer = deserialize_keras_object(config)
    if not isinstance(layer, Layer):
        summary = "the config of a model contains an entry that is not a layer"
        raise ConfigError(summary, given=shorten(config), fix="write it again with model.get_config()")
    if shared is not None and number is not None:
        shared.read[number] = layer
    return named(layer, config.get("name", layer.name))


def named(layer: Layer, name: str) -> Layer:
    """The layer, which has this name from now on, and in other models this one with a number, should it be taken."""
    layer._base_name = layer._name = name
    return layer


def _read_graph(config: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
    """The symbolic inputs and outputs of the graph that `graph_config` has written down; its layers are made anew."""
    tensors = _Tensors()
    waiting = [_read_step(entry, tensors) for entry in config["layers"]]
    while waiting := [step for step in waiting if step.calls]:
        if not any(step.try_call(tensors) for step in waiting):
            summary = "the config of a functional model cannot be read: its calls depend on what nothing computes"
            fix = "write it again with model.get_config(), or mend `inbound_nodes` by hand"
            raise ConfigError(summary, given=f"calls of {', '.join(repr(step.name) for step in waiting)}", fix=fix)
    return tensors.arranged(config["input_layers"]), tensors.arranged(config["output_layers"])


class _NotYet(Exception):
    """A tensor that no call has computed so far."""


class _Tensors:
    """The tensors of a graph that is being read, by their places."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], KerasTensor] = {}  # by `Place`

    def add(self, name: str, call: int, outputs: PyTree) -> None:
        self._found |= {(name, call, index): leaf for index, leaf in enumerate(jax.tree.leaves(outputs))}

    def from_config(self, config: dict[str, Any]) -> KerasTensor:
        """The tensor that a config mentions as the argument of a call."""
        place = tuple(config.get("keras_history") or ())
        if place not in self._found:
            raise _NotYet
        return self._found[place]

    def arranged(self, places: PyTree) -> PyTree:
        """The tensors at these places, in the same structure."""
        if isinstance(places, Mapping) and places.get("class_name") == "__tuple__":
            return tuple(self.arranged(item) for item in places["config"]["value"])
        if isinstance(places, Mapping):
            return {name: self.arranged(item) for name, item in places.items()}
        if not isinstance(places, list) or [type(item) for item in places] != [str, int, int]:
            return [self.arranged(item) for item in places]
        if tuple(places) not in self._found:
            summary = "the config of a functional model mentions an input or output that nothing computes"
            fix = "write it again with model.get_config(), or mend `input_layers` and `output_layers` by hand"
            raise ConfigError(summary, given=shorten(places), fix=fix)
        return self._found[tuple(places)]


@dataclasses.dataclass
class _ReadStep:
    """A layer or operation that is being read; `calls` are the configs of the calls still to be made."""

    name: str
    operation: Layer | Operation
    calls: list[Any]
    made: int = 0

    def try_call(self, tensors: _Tensors) -> bool:
        """Make the next call, if what it depends on is there; whether it is made."""
        try:
            arguments = deserialize_keras_object(self.calls[0], {_TENSOR: tensors})
        except _NotYet:
            return False
        tensors.add(self.name, self.made, self.operation(*arguments["args"], **arguments["kwargs"]))
        self.calls, self.made = self.calls[1:], self.made + 1
        return True


def _write_step(step: Step, graph: Graph) -> dict[str, Any]:
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
    operation = _read_operation(entry) if {**entry, **_OPERATION} == entry else read_layer(entry)
    if isinstance(operation, InputLayer):
        tensors.add(entry["name"], 0, operation.output)
    return _ReadStep(entry["name"], operation, calls)


def _read_operation(entry: Mapping[str, Any]) -> Operation:
    name = entry["config"].get("name")
    if name not in OPERATIONS:
        summary = f"the config of a functional model mentions the unknown operation {shorten(name)}"
        raise ConfigError(summary, given=shorten(entry), fix="write it again with model.get_config()")
    return Operation(name)
