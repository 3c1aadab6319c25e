"""Conversion of configs between the forms of Keras and keras_dist. No code in them is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from keras_dist.storage.keras_operations import is_operation, operation_from_keras, operation_to_keras

_HOUSE = "keras_dist"

_CLASSES = {
    ("models", "Model"): ("keras.src.models.functional", "Functional", "Functional"),
    ("models", "Sequential"): ("keras", "Sequential", None),
    ("layers", "GroupedQueryAttention"): ("keras.layers", "GroupQueryAttention", None),
    ("mixed_precision", "DTypePolicy"): ("keras", "DTypePolicy", None),
}
"""Classes with another name or module in Keras: module, class and registered name there."""

_ONLY_HERE = dict.fromkeys(("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"), ("trainable",))
"""The arguments of classes that Keras does not take, beside layouts."""

_COMPILE = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly", "jit_compile")
"""The arguments of `compile` that Keras has, except `steps_per_execution`."""


def to_keras(written: Any) -> Any:
    """Convert a config to the form of Keras: its modules, tuples and operations, without layouts."""
    if isinstance(written, list):
        return [to_keras(item) for item in written]
    if not isinstance(written, Mapping):
        return written
    if is_operation(written):
        return to_keras(operation_to_keras({**written, "inbound_nodes": to_keras(written["inbound_nodes"])}))
    if "class_name" not in written or "config" not in written:
        return {key: to_keras(value) for key, value in written.items()}
    class_name, config = written["class_name"], written["config"]
    if class_name == "__tuple__":
        return to_keras(config["value"])
    house, _, room = str(written.get("module")).partition(".")
    if isinstance(config, Mapping):
        left_out = _ONLY_HERE.get(class_name, ()) if house == _HOUSE else ()
        kept = {name: value for name, value in config.items() if not _is_layout(name, value) and name not in left_out}
        config = numbered(kept, 1)
    found = {key: to_keras(config if key == "config" else value) for key, value in written.items()}
    name = written.get("registered_name")
    if class_name == "function" and house not in (_HOUSE, "builtins") and isinstance(name, str):
        return {**found, "module": "builtins", "config": name, "registered_name": "function"}
    if house == _HOUSE:
        module, name, registered = _CLASSES.get((room, class_name), (f"keras.{room}", class_name, None))
        registered = config if class_name == "function" else registered
        found |= {"module": module, "class_name": name, "registered_name": registered}
    return found


def compile_to_keras(written: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert the config of `compile` to the form of Keras; None without a counterpart in Keras."""
    optimizer = written.get("optimizer")
    is_known = isinstance(optimizer, str) or (isinstance(optimizer, Mapping) and "class_name" in optimizer)
    if not is_known or written.get("train_step") is not None:
        return None
    if isinstance(optimizer, Mapping) and not str(optimizer.get("module")).startswith(f"{_HOUSE}."):
        return None  # a subclass, which Keras cannot have
    steps = written.get("steps_per_execution")
    found = {name: to_keras(written[name]) for name in _COMPILE if name in written}
    return {**found, "steps_per_execution": steps if isinstance(steps, int) else 1}


def from_keras(config: Any) -> Any:
    """Convert a config of Keras or keras_dist for `deserialize_keras_object`; operations get their names."""
    if isinstance(config, list):
        return [from_keras(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    operation = operation_from_keras(config)
    found = config if operation is None else operation
    inner = found.get("config")
    if isinstance(inner, Mapping) and not _is_ours(inner):
        found = {**found, "config": numbered(inner, -1)}
    return {key: from_keras(value) for key, value in found.items()}


def numbered(graph: Mapping[str, Any], more: int, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the config of a functional model with renumbered calls of inner models at inputs and outputs.

    Keras counts calls of models from 1, calls of layers from 0. Only the models of these names are renumbered; by
    default all functional models. Other configs are returned unchanged.
    """
    if not is_graph(graph):
        return dict(graph)
    if names is None:
        names = {layer.get("name") for layer in graph["layers"] if is_graph(layer.get("config"))}

    def moved(places: Any) -> Any:
        if isinstance(places, list) and [type(item) for item in places] == [str, int, int]:
            name, call, index = places
            return [name, call + more, index] if name in names else places
        if isinstance(places, Mapping):
            return {key: moved(item) for key, item in places.items()}
        return [moved(item) for item in places] if isinstance(places, list) else places

    return {**graph, "input_layers": moved(graph["input_layers"]), "output_layers": moved(graph["output_layers"])}


def is_graph(config: Any) -> bool:
    """Whether a config describes a functional model."""
    if not (isinstance(config, Mapping) and {"layers", "input_layers", "output_layers"} <= {*config}):
        return False
    return isinstance(config["layers"], list) and all(isinstance(layer, Mapping) for layer in config["layers"])


def _is_ours(graph: Mapping[str, Any]) -> bool:
    """Whether keras_dist wrote the config of a functional model, judged by the modules of its layers."""
    return is_graph(graph) and any(str(layer.get("module")).startswith(f"{_HOUSE}.") for layer in graph["layers"])


def _is_layout(name: str, value: Any) -> bool:
    """Whether an argument is the layout of a weight, which Keras does not have."""
    is_axes = isinstance(value, list) and all(axis is None or isinstance(axis, str | list) for axis in value)
    return name.endswith("_layout") and (value is None or is_axes)
