"""The quantized weights of a model: as files have them, dequantized; and quantized shard by shard."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import tree_paths
from keras_dist.layers.base.lora import lora_parts, owner_of
from keras_dist.layers.base.names import layers_below
from keras_dist.layers.base.quantized import Quantization, form_of
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.quantized_modules import ROOT, scales_in
from keras_dist.training.state_cell import StateCell

Read = Callable[[tuple[slice, ...]], np.ndarray]
"""Returns the part of a weight at an index."""


@dataclasses.dataclass(frozen=True)
class QuantizedWeight:
    """A quantized weight, which is read as a weight in floating point is."""

    path: str  # of the stored values
    values: Any  # their variable
    scale: Any  # the variable of the scales
    scale_path: str  # its path
    form: Quantization

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.form.shape(self.values.shape)

    @property
    def dtype(self) -> Any:
        """The element type of the weight that was quantized."""
        return jnp.dtype(self.form.dtype)

    def numpy(self) -> np.ndarray:
        """The dequantized weight on the host. All processes of a job must call it."""
        values, scale = self.values.numpy(), self.scale.numpy()
        return self.form.dequantized(values, scale, np).astype(self.dtype)

    def array(self, cell: StateCell) -> jax.Array:
        """The dequantized weight in float32, on the devices."""
        values, scale = cell.read(self.path), cell.read(self.scale_path)
        return jax.jit(self.form.dequantized)(values, scale)

    def set(self, cell: StateCell, read: Read) -> None:
        """Quantize a weight; each device of this process reads and quantizes its part, one after the other."""
        paths = (self.path, self.scale_path)
        shapes = [cell.row(path).shape for path in paths]
        shardings = [jax.tree.leaves(cell.state_plan.shardings)[cell.place(path)] for path in paths]
        indices = [one.addressable_devices_indices_map(shape) for one, shape in zip(shardings, shapes, strict=True)]
        steps = [self.form.per_element, self.form.tile]  # elements of the weight for one of each array, along the dim
        shards: list[dict[Any, jax.Array]] = [{}, {}]
        alike: dict[str, list[Any]] = {}
        for device in indices[0]:
            alike.setdefault(f"{indices[0][device]} {indices[1][device]}", []).append(device)
        for devices in alike.values():
            boxes = [_box(index[devices[0]], shape) for index, shape in zip(indices, shapes, strict=True)]
            region = _region(boxes, steps, self.form, len(shapes[0]))
            parts = quantized_part(self.form, read, region)
            for found, part, box, step, sharding in zip(shards, parts, boxes, steps, shardings, strict=True):
                dim = len(box) + self.form.dim
                begins = [start // (step if at == dim else 1) for at, (start, _) in enumerate(region)]
                index = tuple(slice(a - first, b - first) for (a, b), first in zip(box, begins, strict=True))
                for device in devices:
                    at = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
                    found[device] = jax.device_put(part[index], at, may_alias=False).block_until_ready()
        arrays = {
            cell.place(path): jax.make_array_from_single_device_arrays(shape, sharding, [found[one] for one in index])
            for path, shape, sharding, found, index in zip(paths, shapes, shardings, shards, indices, strict=True)
        }
        with cell.lock:
            cell.put(arrays)


def quantized_part(form: Quantization, read: Read, region: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return the stored values and scales of a part of a weight; of stacks and experts one slice at a time."""
    index = tuple(slice(*one) for one in region)
    if len(region) + form.dim < 1:
        return [*form.quantized(read(index))]
    shape = [stop - start for start, stop in region]
    values = np.empty(form.stored_shape(shape), form.stored_dtype)
    scale = np.empty(form.scale_shape(shape), np.float32)
    for at in range(shape[0]):
        first = index[0].start + at
        values[at : at + 1], scale[at : at + 1] = form.quantized(read((slice(first, first + 1), *index[1:])))
    return [values, scale]


def _box(index: tuple[slice, ...], shape: Sequence[int]) -> list[tuple[int, int]]:
    return [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]


def _region(
    boxes: Sequence[Sequence[tuple[int, int]]], steps: Sequence[int], form: Quantization, ndim: int
) -> list[tuple[int, int]]:
    """Return the part of a weight, of whole tiles, that parts of its stored values and of its scales need."""
    region: list[tuple[int, int]] = []
    for dim, each in enumerate(zip(*boxes, strict=True)):
        if dim != ndim + form.dim:
            region.append((min(start for start, _ in each), max(stop for _, stop in each)))
            continue
        bounds = [(start * step, stop * step) for (start, stop), step in zip(each, steps, strict=True)]
        first, last = min(start for start, _ in bounds), max(stop for _, stop in bounds)
        region.append((first // form.tile * form.tile, math.ceil(last / form.tile) * form.tile))
    return region


def quantized_weights(built: BuiltModel) -> dict[str, QuantizedWeight]:
    """The quantized weights of a model by path."""
    found: list[QuantizedWeight] = []
    for _, layer in () if built.cell.graph.is_foreign else layers_below(built.model):
        for part in lora_parts(layer):
            name = part.lora_names[0]
            values = getattr(owner_of(part), name, None)
            form = form_of(values)
            if form is not None:
                scale = getattr(owner_of(part), f"{name}_scale")
                found.append(QuantizedWeight(built.path_of(values), values, scale, built.path_of(scale), form))
    for one in scales_in(built.model):
        path = built.cell.row(tree_paths.join(one.parts)).path
        scale = f"{ROOT}/{tree_paths.join(one.parts)}/scale"
        found.append(QuantizedWeight(path, built.variable(path), built.variable(scale), scale, one.form))
    return {one.path: one for one in found}
