"""Configs of whole models as Keras 2 wrote them: classes without modules, and calls as lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keras_dist import constraints, initializers, layers, losses, metrics, optimizers, regularizers
from keras_dist.interop.h5_files import H5Reader
from keras_dist.interop.keras_configs import is_graph, numbered

_ROOMS = {
    "layers": layers,
    "initializers": initializers,
    "regularizers": regularizers,
    "constraints": constraints,
    "optimizers": optimizers,
    "losses": losses,
    "metrics": metrics,
}
_MODELS = {"Sequential": "Sequential", "Functional": "Functional", "Model": "Functional"}
_COMPILE = ("loss", "metrics", "weighted_metrics", "loss_weights")
_GONE = ("time_major", "batch_input_shape")
"""Arguments that Keras 3 does not take any more."""


def legacy_document(reader: H5Reader, name: str) -> Any:
    """Return what a file notes of its model under a name; None for nothing.

    Raises:
        ModelError: it is no JSON.
    """
    text = reader.attribute("/", name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise reader.damaged(f"{name}: {type(error).__name__}: {error}") from error


def legacy_model(config: Any) -> Any:
    """Return the config of a model as Keras 3 writes it."""
    if isinstance(config, list):
        return [legacy_model(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    class_name, inner = config.get("class_name"), config.get("config")
    if isinstance(inner, Mapping) and is_graph(inner):
        config = {**config, "config": _numbered(inner)}
    found = {key: legacy_model(value) for key, value in config.items()}
    if not isinstance(class_name, str) or not isinstance(inner, Mapping):
        return found
    if "inbound_nodes" in config:
        found["inbound_nodes"] = [_call(node) for node in config["inbound_nodes"]]
        found.setdefault("name", inner.get("name"))
    kept = {key: value for key, value in found["config"].items() if key not in _GONE}
    shape, axis = inner.get("batch_input_shape"), inner.get("axis")
    if shape is not None:
        kept["batch_shape" if class_name == "InputLayer" else "batch_input_shape"] = shape
    if isinstance(axis, list) and len(axis) == 1:
        kept["axis"] = axis[0]
    found["config"] = kept
    if config.get("module") is not None:
        return found
    if class_name in _MODELS:
        return {**found, "module": "keras", "class_name": _MODELS[class_name]}
    room = next((room for room, module in _ROOMS.items() if class_name in module.__all__), None)
    return found if room is None else {**found, "module": f"keras.{room}"}


def legacy_compile(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `compile` from what Keras 2 notes of a training."""
    found = {name: config[name] for name in _COMPILE if config.get(name) is not None}
    return legacy_model({"optimizer": config.get("optimizer_config"), **found})


def training_to_legacy(compiled: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is noted of a training in the form of Keras 2, from the arguments of `compile` for Keras 3."""
    optimizer = compiled["optimizer"]
    if isinstance(optimizer, str):
        optimizer = {"class_name": type(optimizers.get(optimizer)).__name__, "config": {}}
    found = {name: compiled.get(name) for name in _COMPILE}
    return {**found, "loss": _spelled_out(found["loss"]), "optimizer_config": optimizer}


def _spelled_out(loss: Any) -> Any:
    """Return losses by their long names: Keras 3.15 writes `"mse"` in such files, and cannot read it."""
    if isinstance(loss, str):
        return getattr(losses.get(loss), "__name__", loss)
    if isinstance(loss, Mapping) and "class_name" not in loss:
        return {name: _spelled_out(one) for name, one in loss.items()}
    return [_spelled_out(one) for one in loss] if isinstance(loss, list) else loss


def _numbered(graph: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a functional model with the numbers of calls as in Keras 3, where calls are lists.

    There the calls of models that begin with an input count from 1, everywhere; in Keras 3 those of functional ones do,
    among the inputs and outputs alone.
    """
    in_graph = {layer.get("name") for layer in graph["layers"] if is_graph(layer.get("config"))}
    in_line = {layer.get("name") for layer in graph["layers"] if _begins_with_input(layer)}

    def moved(node: Any) -> Any:
        if not isinstance(node, list):
            return node
        if [type(item) for item in node[:3]] == [str, int, int] and node[0] in in_graph | in_line:
            return [node[0], node[1] - 1, *node[2:]]
        return [moved(item) for item in node]

    calls = [layer.get("inbound_nodes") for layer in graph["layers"]]
    if not any(isinstance(node, list) for nodes in calls if isinstance(nodes, list) for node in nodes):
        return dict(graph)
    layers = [{**layer, "inbound_nodes": moved(nodes)} for layer, nodes in zip(graph["layers"], calls, strict=True)]
    return {**numbered(graph, -1, in_line), "layers": layers}


def _begins_with_input(layer: Mapping[str, Any]) -> bool:
    """Whether it is the config of a `Sequential` that begins with an input."""
    inner = layer.get("config")
    members = inner.get("layers") if layer.get("class_name") == "Sequential" and isinstance(inner, Mapping) else None
    first = members[0] if isinstance(members, list) and members else None
    return isinstance(first, Mapping) and first.get("class_name") == "InputLayer"


def _call(node: Any) -> Any:
    """Return a call, whose tensors Keras 2 lists as `[layer, call, output, options]`."""
    if not isinstance(node, list) or not all(isinstance(one, list) and len(one) >= 3 for one in node):
        return legacy_model(node)
    places = ({"shape": [], "dtype": "float32", "keras_history": one[:3]} for one in node)
    tensors = [{"class_name": "__keras_tensor__", "config": place} for place in places]
    options = node[0][3] if node and len(node[0]) > 3 else {}
    return {"args": [tensors[0] if len(tensors) == 1 else tensors], "kwargs": options}
