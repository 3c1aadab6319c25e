"""The weights of a model that LoRA adapts: as files have them, the sum of frozen weight and product; and merged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.layers.base.lora import Adapted, Dims, lora_parts, owner_of, product
from keras_dist.layers.base.names import layers_below
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.lora_modules import factors_in
from keras_dist.training.quantized_weights import quantized_weights
from keras_dist.training.state_cell import StateCell


@dataclasses.dataclass(frozen=True)
class MergedWeight:
    """A frozen weight plus `scale` times the product of its factors; it is read as a weight is."""

    path: str  # of the weight
    weight: Any  # the weight, which may be quantized
    factors: tuple[Any, Any]  # the two factors
    dims: Dims  # for each dim of the factors the dim of the weight; None for the rank
    scale: float  # factor of the product
    layer: Adapted | None = None  # the layer of the weight, or one of its weights; None in a foreign module

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
        update = np.float32(self.scale) * product(first, second, self.dims, np.einsum)
        return (value.astype(np.float32) + update).astype(value.dtype)

    def forget(self) -> None:
        """Set the product to zero, so that only the frozen weight contributes. The first factor keeps its values."""
        self.factors[1].assign(np.zeros(self.factors[1].shape, np.float32))

    def sum(self, cell: StateCell) -> jax.Array:
        """Return the sum on the devices, in the element type of the weight that was quantized."""
        first, second = map(cell.read, (self.factors[0].path, self.factors[1].path))
        return (self.weight.array(cell) + self.scale * product(first, second, self.dims)).astype(self.dtype)

    def merge(self, cell: StateCell) -> None:
        """Add the product to the frozen weight, where it is sharded, and make the product zero at the same time."""
        first, second = (cell.place_of(factor) for factor in self.factors)
        place, shardings = cell.place(self.path), jax.tree.leaves(cell.state_plan.shardings)
        arrays = cell.arrays
        given = (arrays[place], arrays[first], arrays[second])
        merged, zeros = _merged(*given, self.dims, self.scale, (shardings[place], shardings[second]))
        cell.put({place: merged, second: zeros})


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _merged(
    weight: jax.Array, first: jax.Array, second: jax.Array, dims: Dims, scale: float, shardings: tuple[Any, Any]
) -> tuple[jax.Array, jax.Array]:
    value = weight.astype(jnp.float32) + scale * product(first, second, dims)
    results = value.astype(weight.dtype), jnp.zeros_like(second)
    return jax.lax.with_sharding_constraint(results, shardings)


def merged_weights(built: BuiltModel) -> dict[str, MergedWeight]:
    """The weights of a model that LoRA adapts, by the paths of the frozen ones."""
    found: list[MergedWeight] = []
    quantized = quantized_weights(built)
    layers = [] if built.cell.graph.is_foreign else layers_below(built.model)
    for part in (part for _, layer in layers for part in lora_parts(layer) if part.lora_enabled):
        weight, *factors = (getattr(owner_of(part), name) for name in part.lora_names)
        given = (factors[0], factors[1]), part.lora_dims, part.lora_scale, part
        path = built.path_of(weight)
        found.append(MergedWeight(path, quantized.get(path, weight), *given))
    for one in factors_in(built.model):
        first, second = map(built.variable, one.factor_paths())
        path = built.cell.row(one.path).path
        weight = quantized.get(path, built.variable(path))
        found.append(MergedWeight(path, weight, (first, second), one.dims, one.scale))
    return {one.path: one for one in found}


def factor_paths(built: BuiltModel, merged: Mapping[str, MergedWeight]) -> set[str]:
    """The paths of the factors of these weights."""
    return {built.path_of(factor) for one in merged.values() for factor in one.factors}
