"""Whole models in `.h5` files in the format of Keras 2: `model.save("m.h5")` and `load_model`.

Their configs name classes without modules, and write calls as lists.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_dist import constraints, initializers, layers, losses, metrics, optimizers, regularizers
from keras_dist._support.located_warnings import warn
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.errors import CheckpointError, ModelError
from keras_dist.storage.h5_files import H5Reader
from keras_dist.storage.keras_configs import compile_to_keras, from_keras, is_graph, numbered, to_keras
from keras_dist.storage.keras_files import Description, MakeModel, check_bytes, reading
from keras_dist.storage.keras_weights import Contents, drafted, fetches, set_contents, set_optimizer, stored_optimizer
from keras_dist.storage.legacy_weights import legacy_slots, note_legacy, written_optimizer, written_slots
from keras_dist.storage.save_formats import check_file_path
from keras_dist.training.built_model import BuiltModel

_ROOMS = (layers, initializers, regularizers, constraints, optimizers, losses, metrics)
_MODELS = {"Sequential": "Sequential", "Functional": "Functional", "Model": "Functional"}
_COMPILE = ("loss", "metrics", "weighted_metrics", "loss_weights")
_GONE = ("time_major", "batch_input_shape")  # arguments that Keras 3 does not take any more


def save_legacy(
    model: Any,
    session: BuiltModel,
    description: Description,
    path: pathlib.Path,
    overwrite: bool,
    include_optimizer: bool,
) -> None:
    """Save a model to an `.h5` file that Keras can load; see `Model.save`."""
    warn(
        f"save: {str(path)!r} has the format of Keras 2, which does not store layouts, dtype policies and random "
        "streams; 'model.keras' keeps them"
    )
    check_file_path("save", path, overwrite, CheckpointError)
    if model._graph is None:
        summary = f"save: an `.h5` file cannot hold model {model.name!r}, whose `call` is code"
        raise ModelError(summary, given=f"a {type(model).__name__}", fix='model.save("model.keras")')
    config = to_keras(description.config)
    documents = {"model_config": {name: config[name] for name in ("class_name", "config")}}
    compiled = compile_to_keras(description.compiled) if include_optimizer else None
    if compiled is not None:
        documents["training_config"] = training_to_legacy(compiled)
    groups = written_slots(model)
    optimizer = [] if compiled is None else written_optimizer(stored_optimizer(session))
    slots = [slot for group in groups.values() for slot in group] + optimizer
    note = functools.partial(note_legacy, documents=documents, groups=groups, optimizer=optimizer)
    with drafted("save", path, session, [functools.partial(fetches, session, slots)], note) as drafts:
        Rendezvous("a save").first(lambda: os.replace(drafts[0], path))


def load_legacy(path: pathlib.Path, make: MakeModel, compile: bool) -> Any:
    """Load a model from an `.h5` file, on the current distribution; see `load_model`."""
    with H5Reader("load_model", path) as reader:
        config = legacy_document(reader, "model_config")
        if config is None:
            summary = f"load_model: {str(path)!r} holds weights, and no model"
            fix = "make the model in code, and then model.load_weights(path)"
            raise ModelError(summary, given="a file of HDF5 without 'model_config'", fix=fix)
        training = legacy_document(reader, "training_config") if compile else None
        with reading(path):
            compiled = {} if training is None else from_keras(legacy_compile(training))
            description = Description(from_keras(legacy_model(config)), compiled, None)
            model, session = make(description, functools.partial(check_bytes, reader))
        with session.cell.lock:
            contents = Contents(legacy_slots(reader, model))
            set_contents(model.name, session, contents, reader, strict=True)
            set_optimizer(session, stored_optimizer(session), reader)
    return model


def legacy_document(reader: H5Reader, name: str) -> Any:
    """Return a JSON document in a file, or None."""
    text = reader.attribute("/", name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise reader.damaged(f"{name}: {type(error).__name__}: {error}") from error


def legacy_model(config: Any) -> Any:
    """Convert the config of a model to the form of Keras 3."""
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
    room = next((room.__name__ for room in _ROOMS if class_name in room.__all__), None)
    return found if room is None else {**found, "module": room.replace("keras_dist", "keras")}


def legacy_compile(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Keras 2's training config to arguments of `compile`."""
    found = {name: config[name] for name in _COMPILE if config.get(name) is not None}
    return legacy_model({"optimizer": config.get("optimizer_config"), **found})


def training_to_legacy(compiled: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments of `compile`, in the form of Keras 3, to Keras 2's training config."""
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

    There calls of models that begin with an input count from 1, everywhere. In Keras 3 only calls of functional models
    do, and only among the inputs and outputs.
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
