"""The weights of a model whose layers have LoRA, as files have them: the sum of frozen weight and product."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist.layers import Layer
from keras_dist.layers.lora import LoraLayer
from keras_dist.models.naming import layers_below
from keras_dist.models.session import Session
from keras_dist.models.variable import ModelVariable


@dataclasses.dataclass(frozen=True)
class MergedWeight:
    """A frozen weight with what its factors add to it. It is read as the handle of a weight is.

    Attributes:
        weight: the frozen weight.
        factors: the first and the second.
        scale: their product counts times this.
    """

    weight: ModelVariable
    factors: tuple[ModelVariable, ModelVariable]
    scale: float

    @property
    def path(self) -> str:
        """The path of the frozen weight."""
        return self.weight.path

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


def merged_weights(model: Layer, session: Session) -> dict[str, MergedWeight]:
    """The weights of a model that LoRA adapts, by the paths of the frozen ones."""
    found: dict[str, MergedWeight] = {}
    for path, layer in layers_below(model):
        if isinstance(layer, LoraLayer) and layer.lora_enabled:
            weight, *factors = (session.variable(f"{path}/{name}".lstrip("/")) for name in layer.lora_names)
            found[weight.path] = MergedWeight(weight, (factors[0], factors[1]), layer.lora_scale)
    return found


def factor_paths(merged: Mapping[str, MergedWeight]) -> set[str]:
    """The paths of the factors of these weights."""
    return {factor.path for one in merged.values() for factor in one.factors}
