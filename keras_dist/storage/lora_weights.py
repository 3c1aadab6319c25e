"""The weights of a model whose layers have LoRA, as files have them: the sum of frozen weight and product."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist.layers import Layer
from keras_dist.layers.lora import LoraLayer
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.naming import layers_below


@dataclasses.dataclass(frozen=True)
class MergedWeight:
    """A frozen weight plus `scale` times the product of its factors; it is read as a weight is."""

    path: str
    weight: Any
    factors: tuple[Any, Any]
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.weight.shape

    @property
    def dtype(self) -> Any:
        """Its element type."""
        return self.weight.dtype

    def numpy(self) -> np.ndarray:
        """The sum on the host, in the element type of the frozen weight. All processes of a job must call it."""
        first, second = (factor.numpy() for factor in self.factors)
        value = self.weight.numpy()
        return (value.astype(np.float32) + np.float32(self.scale) * (first @ second)).astype(value.dtype)

    def forget(self) -> None:
        """Make the product zero, so that the frozen weight alone counts. The first factor stays, to be trained."""
        self.factors[1].assign(np.zeros(self.factors[1].shape, np.float32))


def merged_weights(model: Layer, session: BuiltModel) -> dict[str, MergedWeight]:
    """The weights of a model that LoRA adapts, by the paths of the frozen ones."""
    found: dict[str, MergedWeight] = {}
    for _, layer in layers_below(model):
        if isinstance(layer, LoraLayer) and layer.lora_enabled:
            weight, *factors = (getattr(layer, name) for name in layer.lora_names)
            known_as = session.path_of(weight)
            found[known_as] = MergedWeight(known_as, weight, (factors[0], factors[1]), layer.lora_scale)
    return found


def factor_paths(session: BuiltModel, merged: Mapping[str, MergedWeight]) -> set[str]:
    """The paths of the factors of these weights."""
    return {session.path_of(factor) for one in merged.values() for factor in one.factors}
