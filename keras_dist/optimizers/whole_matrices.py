"""Functions of whole matrices, of weights whose parts are on several devices.

A step of Muon is a function of whole matrices. Weight by weight, XLA gathers each matrix on all devices,
and all compute the same. Here equal matrices are stacked, each device gets whole ones by one all-to-all, computes
without communication, and returns their parts by another. Devices with copies share the work.

Source: the distributed Muon of torchtitan and of Moonlight, https://arxiv.org/abs/2502.16982.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import dim_names
from keras_dist._support.dim_names import BLOCKS, CLASSES, INPUTS, LEADING, OUTPUTS, DimNames
from keras_dist._unstable.xla_workarounds import with_one_layout
from keras_dist.distribution.mesh import axis_tuple

Axes = tuple[str, ...]

EXCHANGE = "exchange_of_matrices"
"""Scope of the exchanges in names of operations."""


class Placement(NamedTuple):
    """Where the gradient of a weight is, and where its step is needed, by the axes of each dim."""

    mesh: Any  # of JAX
    gradient: tuple[Any, ...] | None  # None while layouts are not known: functions of matrices are then left out
    step: tuple[Any, ...] | None


@dataclasses.dataclass(frozen=True)
class MatrixDims:
    """The dims of a weight that is a matrix, or one for each index of other dims.

    Attributes:
        inputs: dims of the inputs, such as height, width and channels.
        outputs: dims of the outputs, such as heads and features of a head.
        others: dims of layers, of experts and of blocks: there is a matrix for each index.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    others: tuple[int, ...] = ()

    def sizes(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the numbers of inputs and of outputs of a weight of this shape."""
        inputs, outputs = (math.prod(shape[dim] for dim in dims) for dims in (self.inputs, self.outputs))
        return inputs, outputs


def matrix_dims(names: DimNames, ndim: int, *, with_heads: bool = False) -> MatrixDims | None:
    """Return the dims of the matrices in a weight, by the names that its layer gives to dims; None if it has none.

    Where only leading dims are named, or none, a weight of two other dims is a matrix.
    """
    leading = dim_names.leading(names)
    if not any(names[leading:]):
        names = (*names[:leading], INPUTS, OUTPUTS) if ndim - leading == 2 else ()
    kinds = ((INPUTS,), (OUTPUTS, CLASSES) if with_heads else (OUTPUTS,), (*LEADING, BLOCKS))
    inputs, outputs, others = (tuple(dim for dim, name in enumerate(names) if name in kind) for kind in kinds)
    is_described = inputs and outputs and len(inputs) + len(outputs) + len(others) == ndim
    return MatrixDims(inputs, outputs, others) if is_described else None


class _Kind(NamedTuple):
    """Sizes and layouts of weights whose matrices are stacked; the shorter side of a matrix comes first."""

    sides: tuple[tuple[int, ...], tuple[int, ...]]  # sizes of the dims of both sides
    given: tuple[Axes, ...]  # axes that shard each of these dims, of the gradient
    made: tuple[Axes, ...]  # and of the step
    others: Axes  # axes that shard the dims of layers, experts and blocks
    dtype: Any
    mesh: jax.sharding.Mesh | None

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes of the dims of a matrix."""
        return (*self.sides[0], *self.sides[1])


class _Weight(NamedTuple):
    """A weight of a kind."""

    shape: tuple[int, ...]
    order: tuple[int, ...]  # its dims in the order of its kind, after the other dims
    others: tuple[Axes, ...]  # axes that shard the other dims

    def spec(self, axes: Sequence[Axes]) -> jax.sharding.PartitionSpec:
        """Return the layout of the weight, given the axes of the dims of a matrix."""
        entries = dict(zip(self.order, (*self.others, *axes), strict=True))
        return jax.sharding.PartitionSpec(*(entries[dim] or None for dim in range(len(self.shape))))

    def stacked(self, array: jax.Array) -> jax.Array:
        """Return the matrices of the weight, (count, *dims of the kind)."""
        array = array.transpose(self.order)
        return array.reshape(-1, *array.shape[len(self.others) :])

    def restored(self, matrices: jax.Array, like: jax.Array) -> jax.Array:
        """Return the weight, or a part of it, with the other dims of `like`."""
        others = (like.shape[dim] for dim in self.order[: len(self.others)])
        return matrices.reshape(*others, *matrices.shape[1:]).transpose(np.argsort(self.order))


def over_matrices(
    function: Callable[[jax.Array], jax.Array],
    arrays: Mapping[str, jax.Array],
    dims: Mapping[str, MatrixDims],
    placements: Mapping[str, Placement],
) -> dict[str, jax.Array]:
    """Return `function` of the matrices of each array.

    Args:
        function: takes and returns matrices (count, m, n) with m <= n, and commutes with their transposition.
        arrays: arrays by path.
        dims: their dims.
        placements: where they are, by path; arrays that are missing are computed one by one, where XLA decides.
    """
    kinds = collections.defaultdict[tuple[_Kind, str], dict[str, _Weight]](dict)
    found: dict[str, jax.Array] = {}
    for path, array in arrays.items():
        placement = placements.get(path)
        if placement is not None and placement.gradient is None:
            found[path] = array
            continue
        kind, weight = _kind_of(array, dims[path], placement)
        kinds[kind, "" if placement else path][path] = weight
    for (kind, _), weights in kinds.items():
        made = _of_kind(function, kind, [*weights.values()], [arrays[path] for path in weights])
        found |= zip(weights, made, strict=True)
    return {path: found[path] for path in arrays}


def _kind_of(array: jax.Array, dims: MatrixDims, placement: Placement | None) -> tuple[_Kind, _Weight]:
    mesh, places = None, ((None,) * array.ndim,) * 2
    if placement is not None and placement.mesh.size > 1:
        mesh, places = placement.mesh, (placement.gradient or (), placement.step or ())
    layouts = [[_axes_of(axes, size, mesh) for axes, size in zip(each, array.shape, strict=True)] for each in places]
    if any(layouts[0][dim] != layouts[1][dim] for dim in dims.others):
        layouts[1] = layouts[0]
    first, second = dims.inputs, dims.outputs
    sizes = dims.sizes(array.shape)
    if sizes[0] > sizes[1] or (sizes[0] == sizes[1] and any(layouts[0][dim] for dim in first)):
        first, second = second, first
    others = tuple(layouts[0][dim] for dim in dims.others)
    kind = _Kind(
        sides=(tuple(array.shape[dim] for dim in first), tuple(array.shape[dim] for dim in second)),
        given=tuple(layouts[0][dim] for dim in (*first, *second)),
        made=tuple(layouts[1][dim] for dim in (*first, *second)),
        others=tuple(axis for axes in others for axis in axes),
        dtype=array.dtype,
        mesh=mesh,
    )
    return kind, _Weight(array.shape, (*dims.others, *first, *second), others)


def _axes_of(axes: Any, size: int, mesh: jax.sharding.Mesh | None) -> Axes:
    """Return the axes that shard a dim; none if they do not divide it."""
    if mesh is None:
        return ()
    names = tuple(axis for axis in axis_tuple(axes) if mesh.shape[axis] > 1)
    return names if size % _size(mesh, names) == 0 else ()


def _size(mesh: jax.sharding.Mesh, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _of_kind(
    function: Callable[[jax.Array], jax.Array], kind: _Kind, weights: Sequence[_Weight], arrays: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    """Return `function` of the matrices of arrays of one kind."""

    def of_whole(stack: jax.Array) -> jax.Array:
        sizes = (math.prod(side) for side in kind.sides)
        return function(stack.reshape(len(stack), *sizes)).reshape(stack.shape)

    def of_arrays(of_stack: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        stacks = [weight.stacked(array) for weight, array in zip(weights, arrays, strict=True)]
        made = of_stack(jnp.concatenate(stacks))
        parts = jnp.split(made, np.cumsum([len(each) for each in stacks])[:-1])
        return tuple(map(_Weight.restored, weights, parts, arrays))

    if kind.mesh is None:
        return of_arrays(of_whole, arrays)
    count = sum(math.prod(each.shape) for each in weights) // math.prod(kind.dims) // _size(kind.mesh, kind.others)
    if count == 1:  # gathered: to send all parts to one device and back costs more, and others would wait
        whole = ((),) * len(kind.dims)
        kind, exchange = kind._replace(given=whole, made=whole), of_whole
    else:
        exchange = functools.partial(_Exchange(kind).around, of_whole)
    specs = [tuple(each.spec(axes) for each in weights) for axes in (kind.given, kind.made)]
    mapped = jax.shard_map(
        lambda *parts: of_arrays(exchange, parts),
        mesh=kind.mesh,
        in_specs=specs[0],
        out_specs=specs[1],
        check_vma=False,
    )
    with jax.named_scope(EXCHANGE):
        return mapped(*arrays)


class _Exchange:
    """The exchange of a stack of parts of matrices, the same on all devices, for whole matrices, and back."""

    def __init__(self, kind: _Kind) -> None:
        mesh: Any = kind.mesh
        self._sizes, self._given, self._made = mesh.shape, kind.given, kind.made
        shared = [axis for axis in mesh.axis_names if mesh.shape[axis] > 1 and axis not in kind.others]
        sharding = {axis for axes in kind.given for axis in axes}
        self._split = tuple(axis for axis in shared if axis in sharding)  # axes that divide the matrices
        self._free = tuple(axis for axis in shared if axis not in sharding)  # over which there are copies
        self._all = (*self._split, *self._free)
        self._devices = _size(mesh, self._all)

    def around(self, function: Callable[[jax.Array], jax.Array], stack: jax.Array) -> jax.Array:
        """Return the parts (count, *dims) of `function` of whole matrices, given the parts on this device."""
        padding = -len(stack) % self._devices
        padded = jnp.pad(stack, ((0, padding), *[(0, 0)] * (stack.ndim - 1)))
        return self._back(function(self._whole(padded)))[: len(stack)]

    def _whole(self, stack: jax.Array) -> jax.Array:
        """Return the matrices of this device."""
        count, splits = len(stack) // self._devices, [self._sizes[axis] for axis in self._split]
        stack = stack.reshape(math.prod(splits), -1, count, *stack.shape[1:])
        if self._free:
            stack = jax.lax.dynamic_index_in_dim(stack, jax.lax.axis_index(self._free), 1, keepdims=False)
        else:
            stack = stack[:, 0]
        if not self._split:
            return stack[0]
        parts = jax.lax.all_to_all(stack, self._split, 0, 0, tiled=True)
        local, order = parts.shape[2:], [len(splits)]
        for dim, axes in enumerate(self._given):
            order += [*map(self._split.index, axes), len(splits) + 1 + dim]
        joined = [size * self._size(axes) for size, axes in zip(local, self._given, strict=True)]
        return parts.reshape(*splits, count, *local).transpose(order).reshape(count, *joined)

    def _back(self, matrices: jax.Array) -> jax.Array:
        """Return the parts of the matrices of all devices."""
        made = [axis for axes in self._made for axis in axes]
        if not self._all:
            return matrices
        if not made:
            return jax.lax.all_gather(matrices, self._all, axis=0, tiled=True)
        shape: list[int] = [len(matrices)]
        places: dict[str, int] = {}
        kept = [0]
        for size, axes in zip(matrices.shape[1:], self._made, strict=True):
            places |= {axis: len(shape) + place for place, axis in enumerate(axes)}
            shape += [*(self._sizes[axis] for axis in axes), size // self._size(axes)]
            kept.append(len(shape) - 1)
        first = sorted(made, key=self._all.index)
        parts = matrices.reshape(shape).transpose([*(places[axis] for axis in first), *kept])
        local = parts.shape[len(first) :]
        parts = parts.reshape(*(self._sizes[axis] if axis in made else 1 for axis in self._all), *local)
        parts = jnp.broadcast_to(parts, (*(self._sizes[axis] for axis in self._all), *local))
        parts = with_one_layout(parts.reshape(self._devices, *local))
        parts = jax.lax.all_to_all(parts, self._all, 0, 0, tiled=True)
        return parts.reshape(-1, *local[1:])

    def _size(self, axes: Axes) -> int:
        return math.prod(self._sizes[axis] for axis in axes)
