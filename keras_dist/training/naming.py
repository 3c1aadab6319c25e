"""The layers in a module: their names, numbered if two are the same, and `trainable`.

Layers are numbered within a model: Keras numbers them within the process, and the second model of a run would have
other paths, which rules would miss. Layers under names of the user are in an `nnx.Dict` that paths leave out, since a
layer may be called `train`.

Setting `trainable` sets all layers inside, so the innermost layer around a weight whose `trainable` was set decides.
Steps keep the flags of `compile`; reports and eager calls read them anew.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import jax.numpy as jnp
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist.distribution.consistency import Fingerprint, facts_of_config
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import ModelError
from keras_dist.layers import Layer
from keras_dist.layers.base.names import layers_in, number_names, numbered
from keras_dist.layers.base.weights import children_of
from keras_dist.variables.variable import Owners, is_trained_by


def name_members(layers: Sequence[Layer]) -> dict[str, Layer]:
    """Name the layers of a model distinctly by `number_names`; layers of other models keep their attribute name."""
    given: dict[str, Layer] = {}
    for layer in layers:
        if layer._base_name is None and given.setdefault(layer.name, layer) is not layer:
            summary = f"two layers are called {layer.name!r}"
            fix = "name one of them otherwise, or leave its name out"
            raise ModelError(summary, given=f"{given[layer.name]!r} and {layer!r}", fix=fix)
    members = number_names(layers)
    for name, layer in members.items():
        if _may_be_renamed(layer):
            layer._name = name
    return members


def named_layers(module: nnx.Module) -> list[Layer]:
    """Number repeated default names of layers, and return the layers as `layers_in` does; given names stay."""
    layers = layers_in(module)
    taken = {layer.name for layer in layers if layer._base_name is None}
    candidates: dict[str, Iterator[str]] = {}
    for layer in layers:
        if layer._base_name is not None and layer.name in taken and _may_be_renamed(layer):
            names = candidates.setdefault(layer._base_name, numbered(layer._base_name))
            layer._name = next(name for name in names if name not in taken)
        taken.add(layer.name)
    return layers


def _may_be_renamed(layer: Layer) -> bool:
    """Whether no other model contains the layer."""
    membership = layer._record.membership
    return membership is None or not membership.prefix


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    return next(candidate for candidate in numbered(name) if candidate not in taken)


def layers_below(root: nnx.Module) -> list[tuple[str, Layer]]:
    """Return all layers of a model, itself included, with their paths; each once and before its sublayers."""
    found: dict[int, tuple[str, Layer]] = {}

    def visit(node: Any, path: str) -> None:
        if id(node) in found:
            return
        found[id(node)] = (path, node)
        for name, child in children_of(node):
            if isinstance(child, nnx.Module):
                visit(child, path if name == tree_paths.MEMBERS else f"{path}/{name}".lstrip("/"))

    visit(root, "")
    return [(path, node) for path, node in found.values() if isinstance(node, Layer)]


def prefixes(path: str) -> Iterator[str]:
    """Yield the prefixes of a path, from the empty path to itself."""
    yield ""
    yield from itertools.accumulate(filter(None, path.split("/")), lambda above, name: f"{above}/{name}")


_Item = TypeVar("_Item")


def by_prefix(items: Iterable[_Item], names: Callable[[_Item], Iterable[str]]) -> dict[str, list[_Item]]:
    """Return the items below each prefix of their names, in order, in linear time."""
    found: dict[str, list[_Item]] = {}
    for item in items:
        for prefix in dict.fromkeys(prefix for name in names(item) for prefix in prefixes(name)):
            found.setdefault(prefix, []).append(item)
    return found


def with_keras_paths(specs: Iterable[VariableSpec], paths: Mapping[str, str]) -> tuple[VariableSpec, ...]:
    """Return the variables with Keras's paths, as far as each path names one variable."""
    specs = [_with_keras_path(spec, paths) for spec in specs]
    names = Counter(name for spec in specs for name in spec.names)
    return tuple(spec if names[spec.keras_path or ""] <= 1 else _with_keras_path(spec, {}) for spec in specs)


def _with_keras_path(spec: VariableSpec, paths: Mapping[str, str]) -> VariableSpec:
    known = next((paths[name] for name in (spec.path, *spec.aliases) if name in paths), None)
    return dataclasses.replace(
        spec,
        keras_path=None if known == spec.path else known,
        factor_of=None if spec.factor_of is None else (_with_keras_path(spec.factor_of[0], paths), spec.factor_of[1]),
        beside=tuple(_with_keras_path(parameter, paths) for parameter in spec.beside),
    )


def path_of_keras(optimizer: str, path: str) -> str:
    """Return Keras's path of an array of an optimizer: it differs for the step count and the learning rate."""
    *above, name = path.split("/")
    if not {*above} <= {"optimizer", "inner"} or name not in ("iterations", "learning_rate"):
        return path
    return f"{optimizer}/{name.removesuffix('s')}"


class TrainableFlags:
    """The current `trainable` of the layers of a model; steps follow it from the next `compile`."""

    def __init__(self, model: Layer, specs: Sequence[VariableSpec]) -> None:
        self._model = model
        self.layers = dict(layers_below(model))  # by path, the model included
        self._order = {path: number for number, path in enumerate(self.layers)}
        self._owners: dict[str, Owners] = {
            spec.path: self._around(spec)
            for spec in specs
            if spec.role == "parameter" and not spec.is_frozen and jnp.issubdtype(spec.dtype, jnp.inexact)
        }
        self._paths = [spec.path for spec in specs]

    def of(self, specs: Sequence[VariableSpec]) -> Self:
        """Return the flags of the same layers for other variables."""
        return type(self)(self._model, specs)

    def is_trainable(self, path: str) -> bool:
        """Whether a variable is trained according to its layers."""
        return path in self._owners and is_trained_by(self._owners[path])

    def flags(self) -> tuple[bool, ...]:
        """Return whether a step trains each variable; all False if the model itself is not trainable."""
        return tuple(self._model._trainable and self.is_trainable(path) for path in self._paths)

    def stated(self) -> tuple[bool, ...]:
        """Return `trainable` of each layer."""
        return tuple(layer._trainable for layer in self.layers.values())

    def facts(self) -> Fingerprint:
        """Return the config of the model, which must be equal in all processes of a job."""
        return facts_of_config("model", self._model)

    def copy_to(self, module: nnx.Module) -> None:
        """Copy `trainable` to the layers of the model's module."""
        for path, layer in layers_below(module):
            if path in self.layers:
                said = self.layers[path]
                layer._trainable, layer._trainable_was_set = said._trainable, said._trainable_was_set

    def _around(self, spec: VariableSpec) -> Owners:
        """Return the layers around a variable, the innermost first."""
        around = {path for name in (spec.path, *spec.aliases) for path in prefixes(name) if path in self.layers}
        return tuple(self.layers[path] for path in sorted(around, key=self._order.__getitem__, reverse=True))
