"""Files of HDF5 as Keras 2 wrote them: weights by layers, in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_dist.errors import ModelError, shorten
from keras_dist.interop.h5_files import H5Reader
from keras_dist.interop.keras_slots import Slot

_LAYERS, _WEIGHTS, _WHOLE, _OPTIMIZER = "layer_names", "weight_names", "model_weights", "optimizer_weights"


def is_legacy(reader: H5Reader) -> bool:
    """Return whether a file tells its layers by attributes."""
    return any(reader.attribute(group, _LAYERS) is not None for group in ("/", _WHOLE))


def legacy_slots(reader: H5Reader, model: str, layers: Sequence[Any]) -> list[Slot]:
    """Return which weight of which layer each array is: layers and weights go by their order, names do not count.

    Args:
        reader: of the file.
        model: its name.
        layers: of the model.

    Raises:
        ModelError: there are more or fewer layers with weights, or weights of one.
    """
    prefix = _WHOLE if reader.attribute(_WHOLE, _LAYERS) is not None else ""
    with_weights = [layer for layer in layers if layer.weights]
    groups = [_joined(prefix, name) for name in _names(reader, prefix or "/", _LAYERS)]
    stored = {group: found for group in groups if (found := _names(reader, group, _WEIGHTS))}
    if len(stored) != len(with_weights):
        raise _misfit(reader, model, f"{len(stored)} layers with weights: {shorten([*stored])}", len(with_weights))
    slots: list[Slot] = []
    for (group, names), layer in zip(stored.items(), with_weights, strict=True):
        weights = [*layer.trainable_weights, *layer.non_trainable_weights]
        if len(names) != len(weights):
            raise _misfit(reader, model, f"{len(names)} weights of {group!r}", f"{len(weights)} of {layer.name!r}")
        slots += [Slot(_joined(group, name), weight) for name, weight in zip(names, weights, strict=True)]
    return slots


def legacy_optimizer(reader: H5Reader, slots: Sequence[Slot]) -> list[Slot] | None:
    """Return which slot of an optimizer each array is; None where there are more or fewer, as before the first step."""
    names = [_joined(_OPTIMIZER, name) for name in _names(reader, _OPTIMIZER, _WEIGHTS)]
    count = next((number for number, slot in enumerate(slots) if slot.name.count("/") > 2), len(slots))
    if len(names) != count or any(name not in reader.shapes for name in names):
        return None
    return [dataclasses.replace(slot, name=name) for slot, name in zip(slots, names, strict=False)]


def _names(reader: H5Reader, group: str, attribute: str) -> list[str]:
    found = reader.attribute(group, attribute)
    names = [] if found is None else list(found)
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _misfit(reader: H5Reader, model: str, given: str, expected: Any) -> ModelError:
    return ModelError(
        f"load_weights: {str(reader.path)!r} does not fit model {model!r}",
        given=given,
        expected=str(expected),
        fix="load it into a model made like the one it was saved from: in this format layers and weights go by order",
    )
