"""`TrainableFlags`: what the layers of a model say about training, at any time."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx

from keras_dist.distribution.jobs.consistency import Fingerprint, facts_of_config
from keras_dist.distribution.variables import VariableSpec
from keras_dist.layers.layer import Layer
from keras_dist.training.naming import layers_below, prefixes
from keras_dist.variables.variable import Owners, say_trainable


class TrainableFlags:
    """What the layers of a model say about training. Steps follow from the next `compile` on, all else at once.

    Attributes:
        layers: the layers by their paths, the model itself included.
    """

    def __init__(self, model: Layer, specs: Sequence[VariableSpec]) -> None:
        self._model = model
        self.layers = dict(layers_below(model))
        self._order = {path: number for number, path in enumerate(self.layers)}
        self._owners: dict[str, Owners] = {
            spec.path: self._around(spec)
            for spec in specs
            if spec.role == "parameter" and jnp.issubdtype(spec.dtype, jnp.inexact)
        }
        self._paths = [spec.path for spec in specs]

    def of(self, specs: Sequence[VariableSpec]) -> TrainableFlags:
        """What the same layers say about other variables."""
        return TrainableFlags(self._model, specs)

    def is_trainable(self, path: str) -> bool:
        """Whether a variable is trained, as far as the layers in the model have a say."""
        return path in self._owners and say_trainable(self._owners[path])

    def flags(self) -> tuple[bool, ...]:
        """For each variable whether a step is to train it: none, if the model itself is not trained."""
        return tuple(self._model._trainable and self.is_trainable(path) for path in self._paths)

    def stated(self) -> tuple[bool, ...]:
        """What each layer says of itself."""
        return tuple(layer._trainable for layer in self.layers.values())

    def facts(self) -> Fingerprint:
        """What must be equal in the model in all processes of a job."""
        return facts_of_config("model", self._model)

    def tell(self, module: nnx.Module) -> None:
        """Let the layers of the model's module say the same."""
        for path, layer in layers_below(module):
            if path in self.layers:
                said = self.layers[path]
                layer._trainable, layer._trainable_was_set = said._trainable, said._trainable_was_set

    def _around(self, spec: VariableSpec) -> Owners:
        """The layers around a variable, the innermost first."""
        around = {path for name in (spec.path, *spec.aliases) for path in prefixes(name) if path in self.layers}
        return tuple(self.layers[path] for path in sorted(around, key=self._order.__getitem__, reverse=True))
