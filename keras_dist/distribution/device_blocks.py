"""The devices that hold each block of an array: as numbers, as a table of text, and as a drawing."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from keras_dist._support import html_tables
from keras_dist._support.text_tables import Table, available_width, render
from keras_dist.distribution.drawing import Cell, Grid, colour, device_labels, devices_svg, ranges, shown
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple
from keras_dist.distribution.render import render_axes, render_bytes, render_shape

if TYPE_CHECKING:
    from keras_dist.distribution.plan import Row

_MOST_BLOCKS = 8  # rows and columns
_ARRAY_PIXELS = (320, 150)
_LEAST_PIXELS = (56, 24)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class ShardPicture:
    """The shards of one array. Printing it gives a table of blocks and their devices; in notebooks a drawing.

    Rows and columns are dims of the array; of more than two dims, the last sharded dim is along the rows, and all
    others are folded. If there are many blocks, the first and the last are shown.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[Axis, ...]
    rule: str | None
    nbytes_per_device: int
    mesh: DeviceMesh

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of blocks along each dim."""
        return tuple(self.mesh.axis_size(axis) for axis in self.axes)

    @functools.cached_property
    def blocks(self) -> np.ndarray:
        """Row-major index of the block that each device holds, in the order of the mesh."""
        names = list(self.mesh.axis_names)
        places = np.indices(self.mesh.shape).reshape(len(names), -1)
        found = np.zeros(self.mesh.size, np.int64)
        for axis, count in zip(self.axes, self.counts, strict=True):
            along = np.zeros(self.mesh.size, np.int64)
            for name in axis_tuple(axis):
                along = along * self.mesh.axis_sizes[name] + places[names.index(name)]
            found = found * count + along
        return found

    @functools.cached_property
    def labels(self) -> list[str]:
        """Number of each device, in the order of the mesh."""
        return device_labels(self.mesh.device_names)

    def block_slices(self, block: int) -> tuple[slice, ...]:
        """Return the slices of a block in the array."""
        index = np.unravel_index(block, self.counts) if self.counts else ()
        steps = [size // count for size, count in zip(self.shape, self.counts, strict=True)]
        return tuple(slice(int(i) * step, (int(i) + 1) * step) for i, step in zip(index, steps, strict=True))

    def __str__(self) -> str:
        width = available_width()
        tables = (self._table(most) for most in range(_MOST_BLOCKS, 2, -1))
        return render(*self._facts(), next((table for table in tables if table.fits(width)), self._table(2)))

    __repr__ = __str__

    def _table(self, most: int) -> Table:
        """Return the table of blocks with at most this number of columns."""
        rows, columns = shown(self._folded[0], _MOST_BLOCKS), shown(self._folded[1], most)
        headers = ("..." if column is None else self._across(column) for column in columns)
        table = Table("", [" \\ ".join(filter(None, self._names)), *headers], has_lines=True)
        for row in rows:
            cells = (
                "..." if row is None or column is None else self._holders(self._block(row, column))
                for column in columns
            )
            table.rows.append(["..." if row is None else self._down(row), *cells])
        return table

    def _repr_html_(self) -> str:
        heading, more = self._facts()
        return html_tables.fragment(
            f"<p><code>{html_tables.escaped(heading)}</code></p>", html_tables.paragraph(more), self.pictures()
        )

    def pictures(self) -> str:
        """Return drawings of the array and the mesh as SVG; a device has the colour of its block."""
        style = "display: flex; flex-wrap: wrap; gap: 16px 40px; align-items: flex-start"
        return f'<div style="{style}">{self.array_svg()}{self.mesh_svg()}</div>'

    def array_svg(self) -> str:
        """Return the drawing of the array with its blocks."""
        rows, columns = self._folded
        height = _ARRAY_PIXELS[1] if len(self.shape) > 1 else 36
        size = (
            max(_LEAST_PIXELS[0], _ARRAY_PIXELS[0] / min(columns, _MOST_BLOCKS)),
            max(_LEAST_PIXELS[1], height / min(rows, _MOST_BLOCKS)),
        )
        return Grid(
            shown(rows, _MOST_BLOCKS),
            shown(columns, _MOST_BLOCKS),
            self._down,
            self._across,
            self._names,
            lambda row, column: self._field(self._block(row, column)),
            size,
            0,
            f"{self.path}: {render_shape(self.shape)} in {math.prod(self.counts)} blocks",
        ).svg()

    def mesh_svg(self) -> str:
        """Return the drawing of the mesh, each device in the colour of its block."""
        count = math.prod(self.counts)
        fields = [
            Cell(label, f"holds {self._where(int(block))}", colour(int(block), count))
            for label, block in zip(self.labels, self.blocks, strict=True)
        ]
        return devices_svg(self.mesh.axis_sizes, self.mesh.device_names, fields, _MOST_BLOCKS)

    def _facts(self) -> tuple[str, str]:
        """Return two lines that describe the array and its blocks."""
        count = math.prod(self.counts)
        used = {name for axis in self.axes for name in axis_tuple(axis)}
        copies = self.mesh.size // count
        unused = [name for name, size in self.mesh.axis_sizes.items() if name not in used and size > 1]
        shard = tuple(size // blocks for size, blocks in zip(self.shape, self.counts, strict=True))
        holders = "one device" if copies == 1 else f"{copies} devices, which differ in {' and '.join(unused)}"
        size = f" of {render_shape(shard)}" if shard else ""
        return (
            f"{self.path}: {render_shape(self.shape)} {self.dtype}, {render_axes(self.axes)}, "
            f"rule: {self.rule or 'none'}, on mesh {self.mesh.describe()}",
            f"{'one block' if count == 1 else f'{count} blocks'}{size}, {render_bytes(self.nbytes_per_device)}, "
            f"each on {holders}; device {self.labels[0]} is {self.mesh.device_names[0]}",
        )

    @functools.cached_property
    def _along(self) -> int:
        """The dim along the rows: the last sharded dim, or the last; -1 for a scalar."""
        if len(self.shape) < 3:
            return len(self.shape) - 1
        return max((dim for dim, count in enumerate(self.counts) if count > 1), default=len(self.shape) - 1)

    @functools.cached_property
    def _others(self) -> list[int]:
        """The dims that are folded along the columns."""
        return [dim for dim in range(len(self.shape)) if dim != self._along]

    @property
    def _names(self) -> tuple[str, str]:
        """Headings of rows and columns; empty for fewer than three dims."""
        if len(self.shape) < 3:
            return "", ""
        return (
            f"dims {', '.join(map(str, self._others))} \N{DOWNWARDS ARROW}",
            f"dim {self._along} \N{RIGHTWARDS ARROW}",
        )

    @property
    def _folded(self) -> tuple[int, int]:
        """Numbers of rows and columns of blocks."""
        return math.prod(self.counts[dim] for dim in self._others), self.counts[self._along] if self.shape else 1

    def _block(self, row: int, column: int) -> int:
        if not self.shape:
            return 0
        index = [int(i) for i in np.unravel_index(row, [self.counts[dim] for dim in self._others] or [1])]
        place = [*index[: self._along], column, *index[self._along :]]
        return int(np.ravel_multi_index(place[: len(self.shape)], self.counts))

    def _across(self, column: int) -> str:
        return _range(self.block_slices(self._block(0, column))[self._along]) if self.shape else ""

    def _down(self, row: int) -> str:
        """Return the heading of a row: the ranges of the folded dims, or their sizes if they are unsharded."""
        if len(self.shape) < 2:
            return ""
        slices = self.block_slices(self._block(row, 0))
        if len(self.shape) > 2 and all(self.counts[dim] == 1 for dim in self._others):
            return render_shape([self.shape[dim] for dim in self._others])
        return ", ".join(_range(slices[dim]) for dim in self._others)

    def _field(self, block: int) -> Cell:
        return Cell(self._holders(block), self._where(block), colour(block, math.prod(self.counts)))

    def _where(self, block: int) -> str:
        return f"[{', '.join(map(_range, self.block_slices(block)))}]" if self.shape else "the scalar"

    def _holders(self, block: int) -> str:
        held = np.flatnonzero(self.blocks == block)
        if len(held) == self.mesh.size > 1:
            return f"all {self.mesh.size} devices"
        return ranges([int(self.labels[index]) for index in held])


def _range(part: slice) -> str:
    return f"{part.start}:{part.stop}"


def picture_of(row: Row, mesh: DeviceMesh) -> ShardPicture:
    """Return the picture of the shards of a row of a plan."""
    return ShardPicture(row.path, row.shape, str(row.dtype), row.axes, row.rule, row.nbytes_per_device, mesh)
