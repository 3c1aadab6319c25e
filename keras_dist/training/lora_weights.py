"""The weights of a model that LoRA adapts: as files have them, the sum of frozen weight and product; and merged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.errors import ModelError
from keras_dist.layers.base.lora import Adapted, Dims, LoraLayer, Vector, lora_parts, norms, owner_of, with_update
from keras_dist.layers.base.names import layers_below
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.lora_modules import factors_in
from keras_dist.training.quantized_weights import QuantizedWeight, quantized_weights
from keras_dist.training.state_cell import StateCell


@dataclasses.dataclass(frozen=True)
class MergedWeight:
    """A frozen weight plus `scale` times the product of its factors, and its vector; it is read as a weight is."""

    path: str  # of the weight
    weight: Any  # the weight, which may be quantized
    factors: tuple[Any, ...]  # the factors, and the vector if there is one
    dims: Dims  # for each dim of the factors the dim of the weight; None for the rank
    scale: float  # factor of the product
    layer: Adapted | None = None  # the layer of the weight, or one of its weights; None in a foreign module
    vector: Vector = ""

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
        self.check()
        value = self.weight.numpy()
        return self._sum(value.astype(np.float32), [factor.numpy() for factor in self.factors], np).astype(value.dtype)

    def forget(self, cell: StateCell) -> None:
        """Set the update to zero, so that only the frozen weight contributes. The first factor keeps its values."""
        for factor in self.factors[1:]:
            factor.assign(np.zeros(factor.shape, np.float32))
        if self.vector == "magnitude":
            self.factors[2].assign(self._norms(cell))

    def start(self, cell: StateCell) -> None:
        """Begin with the norms of the frozen weight as magnitude, if there is one."""
        if self.vector == "magnitude":
            cell.derive(self.factors[2], functools.partial(self._norms, cell))

    def check(self) -> None:
        """Raise if there is a bias to add, but none in the layer that it can be added to."""
        if self.vector == "bias" and _bias_of(self) is None:
            summary, given = f"the bias of lora_B of {self.path!r} cannot be merged", "a layer without such a bias"
            raise ModelError(summary, given=given, fix="use_bias=True in the layer; or save_adapter")

    def sum(self, cell: StateCell) -> jax.Array:
        """Return the sum on the devices, in the element type of the weight that was quantized."""
        return self._sum(self._value(cell), [cell.read(factor.path) for factor in self.factors]).astype(self.dtype)

    def merge(self, cell: StateCell) -> None:
        """Add the product to the frozen weight, where it is sharded, and make the product zero at the same time."""
        factors = [cell.place_of(factor) for factor in self.factors]
        place, shardings = cell.place(self.path), jax.tree.leaves(cell.state_plan.shardings)
        arrays = cell.arrays
        given = arrays[place], [arrays[factor] for factor in factors]
        options = self.dims, self.scale, self.vector, (shardings[place], shardings[factors[1]])
        merged, zeros = _merged(*given, *options)
        cell.put({place: merged, factors[1]: zeros})

    def _value(self, cell: StateCell) -> jax.Array:
        return self.weight.array(cell) if isinstance(self.weight, QuantizedWeight) else cell.read(self.path)

    def _norms(self, cell: StateCell) -> jax.Array:
        return _norms(self._value(cell), self.dims)

    def _sum(self, weight: Any, factors: Sequence[Any], xp: Any = jnp) -> Any:
        return with_update(weight, factors, self.dims, self.scale, self.vector, xp)


class MergedBias(MergedWeight):
    """A bias plus `scale` times the bias of a second factor."""

    def merge(self, cell: StateCell) -> None:
        """Add the bias to the bias of the layer, and make it zero at the same time."""
        zeros = np.zeros(self.factors[0].shape, np.float32)
        cell.write_all({cell.index(self.path): self.sum(cell), cell.index(self.factors[0].path): zeros})

    def forget(self, cell: StateCell) -> None:
        """Set the update to zero."""
        self.factors[0].assign(np.zeros(self.factors[0].shape, np.float32))

    def _sum(self, weight: Any, factors: Sequence[Any], xp: Any = jnp) -> Any:
        return weight + xp.float32(self.scale) * cast("LoraLayer", self.layer).per_output(factors[0])


def _bias_of(one: MergedWeight) -> Any:
    """Return the bias of a layer to which the bias of a second factor can be added; None without one."""
    bias = getattr(one.layer, "bias", None)
    shape = cast("LoraLayer", one.layer).per_output(np.empty(one.factors[2].shape, np.float32)).shape
    return None if bias is None or bias.shape != shape else bias


@functools.partial(jax.jit, static_argnums=1)
def _norms(weight: jax.Array, dims: Dims) -> jax.Array:
    return norms(weight.astype(jnp.float32), dims)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _merged(
    weight: jax.Array, factors: list[jax.Array], dims: Dims, scale: float, vector: Vector, shardings: tuple[Any, Any]
) -> tuple[jax.Array, jax.Array]:
    value = with_update(weight.astype(jnp.float32), factors, dims, scale, vector)
    results = value.astype(weight.dtype), jnp.zeros_like(factors[1])
    return jax.lax.with_sharding_constraint(results, shardings)


def merged_weights(built: BuiltModel) -> dict[str, MergedWeight]:
    """The weights of a model that LoRA adapts, by the paths of the frozen ones."""
    found: list[MergedWeight] = []
    quantized = quantized_weights(built)
    layers = [] if built.cell.graph.is_foreign else layers_below(built.model)
    for part in (part for _, layer in layers for part in lora_parts(layer) if part.lora_enabled):
        weight, *factors = (getattr(owner_of(part), name) for name in part.lora_names)
        given = part.lora_dims, part.lora_scale, part
        path = built.path_of(weight)
        found.append(MergedWeight(path, quantized.get(path, weight), tuple(factors), *given, part.lora_vector))
        if part.lora_vector == "bias" and (bias := _bias_of(found[-1])) is not None:
            found.append(MergedBias(built.path_of(bias), bias, (factors[2],), *given))
    for one in factors_in(built.model):
        first, second = map(built.variable, one.factor_paths())
        path = built.cell.row(one.path).path
        weight = quantized.get(path, built.variable(path))
        found.append(MergedWeight(path, weight, (first, second), one.dims, one.scale))
    return {one.path: one for one in found}


def factor_paths(built: BuiltModel, merged: Mapping[str, MergedWeight]) -> set[str]:
    """The paths of the factors of these weights."""
    return {built.path_of(factor) for one in merged.values() for factor in one.factors}
