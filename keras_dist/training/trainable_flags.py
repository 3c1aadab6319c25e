"""`TrainableFlags`: `trainable` of the layers of a model.

Setting `trainable` sets all layers inside, so the innermost layer around a weight whose `trainable` was set decides.
Steps keep the flags of `compile`; reports and eager calls read them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import jax.numpy as jnp
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist.distribution.consistency import Fingerprint, facts_of_config
from keras_dist.distribution.variables import VariableSpec
from keras_dist.layers import Layer
from keras_dist.layers.base.names import layers_below
from keras_dist.variables.variable import Owners, is_trained_by


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
        around = {
            path for name in (spec.path, *spec.aliases) for path in tree_paths.prefixes(name) if path in self.layers
        }
        return tuple(self.layers[path] for path in sorted(around, key=self._order.__getitem__, reverse=True))
