"""`RowTable`: the table of an `Embedding` in a compiled step that only looks up rows.

The gradient of a table has its size. A step therefore differentiates the rows that it looks up: it adds zeros to them,
whose gradients are the gradients of the rows. The `RowTable` replaces the array in the variable, so that any other use
of the weight, whose gradient would be lost, raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from keras_dist._support.array_operators import Operators
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist._unstable.jax_internals import current_trace
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.errors import ModelError

Axes = tuple[Axis, ...]


@dataclasses.dataclass(eq=False)
class Lookups:
    """The lookups of a step in their order."""

    taps: list[jax.Array] | None = None  # zeros to add to the rows; None while their shapes are found
    paths: list[str] = dataclasses.field(default_factory=list)
    indices: list[jax.Array] = dataclasses.field(default_factory=list)
    shapes: list[jax.ShapeDtypeStruct] = dataclasses.field(default_factory=list)

    def added(self, path: str, indices: jax.Array, rows: jax.Array) -> jax.Array:
        """Record a lookup; return its rows plus their zeros."""
        self.paths.append(path)
        self.indices.append(indices)
        self.shapes.append(jax.ShapeDtypeStruct(rows.shape, rows.dtype))
        return rows if self.taps is None else rows + self.taps[len(self.paths) - 1]


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """The mesh axes over rows and columns of a table, and over the batch."""

    mesh: DeviceMesh
    axes: Axes
    batch_axes: tuple[str, ...]

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes over which the rows are sharded."""
        return axis_tuple(self.axes[0])

    def shard_map(self, function: Callable[..., Any], inputs: PyTree, outputs: PyTree) -> Callable[..., Any]:
        """Return `function` of shards."""
        return jax.shard_map(function, mesh=self.mesh.backend_mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def own(self, indices: jax.Array, count: int) -> jax.Array:
        """Return indices into the `count` rows of this device, in a `shard_map`; `count` for rows of other devices."""
        if self.row_axes:
            indices = indices - jax.lax.axis_index(self.row_axes) * count
        return jnp.where((indices >= 0) & (indices < count), indices, count)

    def axes_of(self, indices: jax.Array) -> Axes:
        """Return the axes of indices: of the batch over the first dim, if they divide it and do not split columns."""
        batch, size = self.batch_axes, self.mesh.axis_size(self.batch_axes)
        is_sharded = indices.ndim and indices.shape[0] % size == 0 and not {*batch} & {*axis_tuple(self.axes[1])}
        return (batch if is_sharded else None, *[None] * (indices.ndim - 1))[: indices.ndim]

    def take(self, table: jax.Array, indices: jax.Array) -> jax.Array:
        """Return rows (..., columns); each device reads its shard, and the sums are exchanged."""
        over, axes = self.row_axes, self.axes_of(indices)
        scatters = bool(over) and axes[:1] == (over,)
        if not scatters and {*over} & {*self.batch_axes}:
            axes = (None,) * indices.ndim

        def local(table: jax.Array, indices: jax.Array) -> jax.Array:
            indices = gathered(indices, axes) if scatters else indices
            rows = jnp.take(table, self.own(indices, len(table)), axis=0, mode="fill", fill_value=0)
            if scatters:
                return jax.lax.psum_scatter(rows, over, scatter_dimension=0, tiled=True)
            return jax.lax.psum(rows, over) if over else rows

        return self.shard_map(local, (P(*self.axes), P(*axes)), P(*axes, self.axes[1]))(table, indices)


def gathered(array: jax.Array, axes: Axes) -> jax.Array:
    """Return the whole of an array whose first dim may be sharded, in a `shard_map`."""
    over = axis_tuple(axes[0]) if axes else ()
    return jax.lax.all_gather(array, over, tiled=True) if over else array


class RowTable(Operators):
    """A table (rows, columns) at a path; a train step records its `lookups`."""

    def __init__(
        self, path: str, table: Any, layout: TableLayout, lookups: Lookups | None, dtype: DTypeLike | None = None
    ) -> None:
        self.path, self.shape, self.dtype = path, table.shape, jnp.dtype(dtype or table.dtype)
        self._given = path, table, layout, lookups
        self._trace = current_trace()

    def __getitem__(self, index: Any) -> Any:
        return self if index is Ellipsis else self.value[index]

    def astype(self, dtype: DTypeLike) -> RowTable:
        """Return the table with rows of another dtype; their gradients have the dtype of the table."""
        return RowTable(*self._given, dtype)

    def take(self, indices: jax.Array) -> jax.Array:
        """Return rows (..., columns) for integers (...), as `jax.numpy.take(table, indices, axis=0)`."""
        path, table, layout, lookups = self._given
        indices = jnp.where(indices < 0, indices + len(table), indices)
        rows = layout.take(table, indices)
        if lookups is not None:
            if current_trace() != self._trace:
                given = f"a lookup of {path!r} inside of a loop, a recomputed layer, or another JAX transformation"
                fix = "look rows up outside of it, and pass them; or leave this table out of `rowwise`"
                raise ModelError("`rowwise` cannot see which rows a step looks up", given=given, fix=fix)
            rows = lookups.added(path, indices, rows)
        is_row = (indices >= 0) & (indices < len(table))
        return jnp.where(is_row[..., None], rows, jnp.nan).astype(self.dtype)

    @property
    def __jax_array__(self) -> Any:  # JAX looks for it before it raises its own error
        array = self._read()
        return lambda: array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(name)
        return getattr(self._read(), name)

    def _read(self) -> Any:
        path, table, _, lookups = self._given
        if lookups is None:
            return table.astype(self.dtype)
        given = f"{path!r}, used as a whole, as for logits or a penalty, or inside of a layer that is recomputed"
        fix = "use a second weight there, or leave this table out of `rowwise`"
        raise ModelError("a table of `rowwise` may only be looked up, by `Embedding`", given=given, fix=fix)
