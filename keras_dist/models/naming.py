"""Names of the layers in a model: numbered where two would be the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from keras_dist.errors import ModelError


def name_members(layers: Sequence[Any]) -> dict[str, Any]:
    """The layers by names that differ; layers that were given none are numbered in their order: `dense`, `dense_1`.

    A layer that lives in another model keeps the name that it has there for itself.

    Raises:
        ModelError: two have been given the same name.
    """
    given: dict[str, Any] = {}
    for layer in layers:
        if layer._base_name is None:
            if layer.name in given:
                raise ModelError(
                    f"two layers are called {layer.name!r}",
                    given=f"{given[layer.name]!r} and {layer!r}",
                    expected="a name of its own for each layer of a model",
                    fix="name one of them otherwise, or leave its name out",
                )
            given[layer.name] = layer
    members: dict[str, Any] = {}
    for layer in layers:
        name = layer.name if layer._base_name is None else _free(layer._base_name, {*given, *members})
        if layer._base_name is not None and getattr(layer, "_home", None) is None:
            layer._name = name
        members[name] = layer
    return members


def _free(name: str, taken: Collection[str]) -> str:
    candidates = [name, *(f"{name}_{number}" for number in range(1, len(taken) + 1))]
    return next(candidate for candidate in candidates if candidate not in taken)
