"""`Share`: which rows of each batch a process gathers, where several processes make the global batches together."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping

import numpy as np
from jax.experimental import multihost_utils

from keras_dist.distribution import cluster
from keras_dist.distribution.ownership import (
    BatchLayout,
    ProcessOf,
    outside_of_mesh,
    process_of_device,
    process_rows,
    sharding_of_rows,
)
from keras_dist.distribution.replica_groups import ReplicaGroup, all_replica_groups
from keras_dist.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class Portion:
    """The rows of one batch that a process gathers.

    Attributes:
        numbers: of the rows, in the batch that the source gives; the last row stands for the padding.
        positions: of these rows in the global batch, sorted.
        padded: rows of the global batch.
        rows: how many of them are real: the first ones.
    """

    numbers: np.ndarray
    positions: np.ndarray
    padded: int
    rows: int


@dataclasses.dataclass(frozen=True, eq=False)
class Share:
    """Which rows of each batch this process gathers: those that its devices hold.

    Attributes:
        layouts: of the arrays of a batch, whose rows may be laid out differently.
        multiple_of: global batches are padded to a multiple of this many rows.
        is_own: whether the source holds the rows of this process alone; else it holds those of all.
        process_index: which process; None for this one.
        process_of: the process of a device.
    """

    layouts: tuple[BatchLayout, ...]
    multiple_of: int
    is_own: bool = False
    process_index: int | None = None
    process_of: ProcessOf = process_of_device

    def owned(self, padded_rows: int) -> np.ndarray:
        """Sorted positions in the global batch of the rows that some array has on a device of this process.

        Raises:
            DataError: the process has no device in the mesh.
        """
        if padded_rows not in self._known:
            rows = [process_rows(one, padded_rows, self._process, self.process_of) for one in set(self.layouts)]
            self._known[padded_rows] = functools.reduce(np.union1d, rows)
        if not len(self._known[padded_rows]):
            raise outside_of_mesh(self._process)
        return self._known[padded_rows]

    def portion(self, rows: int) -> Portion:
        """What to gather of a batch of the source with so many rows.

        Raises:
            DataError: the process has no device in the mesh; or its own rows cannot be divided among its devices.
        """
        if not self.is_own:
            padded = -(-rows // self.multiple_of) * self.multiple_of
            positions = self.owned(padded)
            return Portion(np.minimum(positions, rows - 1), positions, padded, rows)
        count, each = self._parts
        if rows % each:
            raise DataError(
                "the rows that a process gives cannot be divided among its devices",
                given=f"a batch of {rows} rows, auto_shard_dataset=False",
                expected=f"a multiple of {each} rows in every batch of each process",
                fix=f"batches of {-(-rows // each) * each} rows, or auto_shard_dataset=True and all rows everywhere",
            )
        return Portion(np.arange(rows), self.owned(rows * count), rows * count, rows * count)

    def check_agreement(self, sizes: Mapping[str, int | None], shuffle_key: tuple[int, ...] | None) -> None:
        """Nothing, if all processes go through their data alike. All processes of the mesh call it.

        Args:
            sizes: numbers that must be the same in all of them, by what they count; None where they do not know one.
            shuffle_key: what fixes the order of the rows; where each process has its own, they may differ.

        Raises:
            DataError: they do not, in all processes.
        """
        values = {name: -1 if size is None else size for name, size in sizes.items()}
        if not self.is_own:
            values["order of the rows"] = zlib.crc32(repr(shuffle_key).encode())
        devices = {device for layout in self.layouts for device in sharding_of_rows(layout).device_set}
        if len({self.process_of(device) for device in devices}) != cluster.num_processes():
            return  # to ask the others takes all processes of the job
        table = np.asarray(multihost_utils.process_allgather(np.array(list(values.values())).astype(np.int32)))
        others = {name: column for name, column in zip(values, table.T, strict=True) if (column != column[0]).any()}
        if others:
            raise DataError(
                "the processes of the job do not go through their data alike",
                given="; ".join(f"{name}: {', '.join(map(str, column))}" for name, column in others.items()),
                expected="the same in every process",
                fix="give all processes the same arguments; keras_dist.initialize() gives them one seed",
            )

    @functools.cached_property
    def _known(self) -> dict[int, np.ndarray]:
        return {}

    @property
    def _process(self) -> int:
        return cluster.process_id() if self.process_index is None else self.process_index

    @functools.cached_property
    def _parts(self) -> tuple[int, int]:
        """How many groups of processes give rows of their own, and what those of each must be a multiple of."""
        grouped = {tuple(all_replica_groups(layout, self.process_of)) for layout in set(self.layouts)}
        owned = {tuple(tuple(group.rows(self.multiple_of)) for group in groups) for groups in grouped}
        sizes = {len(rows) for each in owned for rows in each}
        if len(sizes) > 1 or len(owned) > 1:
            raise DataError(
                "the processes own unequal parts of the arrays of a batch, and cannot each give their own",
                given="auto_shard_dataset=False, and " + "; ".join(_described(groups) for groups in grouped),
                expected="processes with equally many shards each, in all arrays of a batch",
                fix="auto_shard_dataset=True, and all rows in every process",
            )
        return len(next(iter(grouped))), sizes.pop()


def _described(groups: tuple[ReplicaGroup, ...]) -> str:
    return ", ".join(f"processes {list(group.processes)}: {len(group.shards)} shards" for group in groups)
