"""Weights in HDF5 files in the format of Keras 2, which Keras 3 also writes: by layer, in order."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from keras_dist.errors import ModelError, shorten
from keras_dist.storage.h5_files import H5Reader, H5Writer
from keras_dist.storage.keras_paths import joined
from keras_dist.storage.keras_slots import Slot

_LAYERS, _WEIGHTS, _WHOLE, _OPTIMIZER = "layer_names", "weight_names", "model_weights", "optimizer_weights"
_TOP = "top_level_model_weights"
_VERSIONS = {"keras_version": "3.15.1", "backend": "jax"}


def is_legacy(reader: H5Reader) -> bool:
    """Return whether a file lists its layers in attributes, as in Keras 2."""
    return any(reader.attribute(group, _LAYERS) is not None for group in ("/", _WHOLE))


def legacy_slots(reader: H5Reader, model: Any, by_name: bool = False) -> list[Slot]:
    """Match arrays with weights by the order of layers and weights, or by layer names."""
    prefix = _WHOLE if reader.attribute(_WHOLE, _LAYERS) is not None else ""
    with_weights = [layer for layer in model.layers if layer.weights]
    groups = [joined(prefix, name) for name in _names(reader, prefix or "/", _LAYERS)]
    stored = {group: found for group in groups if (found := _names(reader, group, _WEIGHTS))}
    if by_name:
        named = {joined(prefix, layer.name): layer for layer in with_weights}
        pairs = [(group, named[group]) for group in stored if group in named]
    elif len(stored) != len(with_weights):
        raise _misfit(reader, model.name, f"{len(stored)} layers with weights: {shorten([*stored])}", len(with_weights))
    else:
        pairs = list(zip(stored, with_weights, strict=True))
    found = [(group, layer.name, _ordered(layer)) for group, layer in pairs]
    top = joined(prefix, _TOP)
    if names := _names(reader, top, _WEIGHTS):
        stored[top] = names
        found.append((top, model.name, _of_model(model)))
    slots: list[Slot] = []
    for group, name, weights in found:
        if len(stored[group]) != len(weights):
            given, wanted = f"{len(stored[group])} weights of {group!r}", f"{len(weights)} of {name!r}"
            raise _misfit(reader, model.name, given, wanted)
        slots += [Slot(joined(group, one), weight) for one, weight in zip(stored[group], weights, strict=True)]
    return slots


def written_slots(model: Any) -> dict[str, list[Slot]]:
    """Return the arrays to write, grouped by layer."""
    found = {layer.name: _ordered(layer) for layer in model.layers} | {_TOP: _of_model(model)}
    return {
        joined(_WHOLE, name): [Slot(joined(f"{_WHOLE}/{name}", weight.path), weight) for weight in weights]
        for name, weights in found.items()
    }


def written_optimizer(slots: Sequence[Slot]) -> list[Slot]:
    """Return the optimizer arrays to write; the state of nested optimizers is written once."""
    return [dataclasses.replace(slot, name=joined(_OPTIMIZER, slot.name)) for slot in _outer(slots)]


def note_legacy(
    writer: H5Writer, documents: Mapping[str, Any], groups: Mapping[str, Sequence[Slot]], optimizer: Sequence[Slot]
) -> None:
    """Write the attributes that describe the model and its arrays."""
    writer.note("/", **_VERSIONS, **{name: json.dumps(document) for name, document in documents.items()})
    layers = [group.removeprefix(f"{_WHOLE}/") for group in groups]
    writer.note(_WHOLE, **_VERSIONS, **{_LAYERS: layers[:-1]})  # without the group of the model itself
    for group, slots in groups.items():
        writer.note(group, **{_WEIGHTS: [slot.name.removeprefix(f"{group}/") for slot in slots]})
    if optimizer:
        writer.note(_OPTIMIZER, **{_WEIGHTS: [slot.name.removeprefix(f"{_OPTIMIZER}/") for slot in optimizer]})


def _ordered(layer: Any) -> list[Any]:
    """Return the weights of a layer as Keras 2 orders them."""
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _of_model(model: Any) -> list[Any]:
    """Return the weights of a model that none of its layers has."""
    of_layers = [weight for layer in model.layers for weight in layer.weights]
    return [weight for weight in _ordered(model) if not any(weight is one for one in of_layers)]


def legacy_optimizer(reader: H5Reader, slots: Sequence[Slot]) -> list[Slot] | None:
    """Match arrays with the slots of an optimizer; None if their numbers differ, as before the first step."""
    names = [joined(_OPTIMIZER, name) for name in _names(reader, _OPTIMIZER, _WEIGHTS)]
    outer = _outer(slots)
    if len(names) != len(outer) or any(name not in reader.shapes for name in names):
        return None
    return [dataclasses.replace(slot, name=name) for slot, name in zip(outer, names, strict=True)]


def _outer(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots of the optimizer itself, which come before those of nested optimizers."""
    return [*itertools.takewhile(lambda slot: slot.name.count("/") <= 2, slots)]


def _names(reader: H5Reader, group: str, attribute: str) -> list[str]:
    found = reader.attribute(group, attribute)
    if found is None:
        return []
    try:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in found]
    except (TypeError, UnicodeDecodeError) as error:
        raise reader.damaged(f"{attribute!r} of {group!r}: {type(error).__name__}: {error}") from error


def _misfit(reader: H5Reader, model: str, given: str, expected: Any) -> ModelError:
    summary = f"{reader.caller}: {str(reader.path)!r} does not fit model {model!r}"
    fix = "load it into a model made like the one it was saved from: in this format layers and weights go by order"
    return ModelError(summary, given=given, expected=str(expected), fix=fix)
