"""Groups of processes that own, and so must load, the same rows of every global batch."""

from __future__ import annotations

import dataclasses

import numpy as np

from keras_dist._arguments import is_int
from keras_dist.distribution import cluster, scope
from keras_dist.distribution.ownership import (
    BatchLayout,
    ProcessOf,
    check_divides,
    outside_of_mesh,
    process_of_device,
    process_rows,
    sharding_of_rows,
    shards_of,
)
from keras_dist.errors import DataError


@dataclasses.dataclass(frozen=True)
class ReplicaGroup:
    """Processes that own the same rows of every global batch, and so must load identical rows.

    Attributes:
        count: how many such groups there are.
        index: which of them this is, in the order of the first rows that they own.
        processes: indices of the processes in it.
        shards: the shards of a batch that it owns, in order.
        multiple_of: shards of a batch; its rows are padded to a multiple of this number.
    """

    count: int
    index: int
    processes: tuple[int, ...]
    shards: tuple[int, ...]
    multiple_of: int

    @classmethod
    def numbered(cls, count: int, index: int) -> ReplicaGroup:
        """Group `index` of `count`, each one process with the `index`-th equal part of a batch.

        Raises:
            DataError: they are not integers with `0 <= index < count`.
        """
        if not is_int(count) or not is_int(index, 0, count - 1):
            raise DataError(
                "there is no such group of processes",
                given=f"num_groups={count!r}, group_index={index!r}",
                expected="integers with 0 <= group_index < num_groups",
                fix="give both, or neither for the groups of the current distribution",
            )
        return cls(int(count), int(index), (int(index),), (int(index),), int(count))

    def rows(self, padded_rows: int) -> np.ndarray:
        """The rows that it owns of a global batch: sorted, unique positions in it.

        Args:
            padded_rows: rows of the global batch, a multiple of `multiple_of`.

        Raises:
            DataError: they are no such multiple.
        """
        check_divides(padded_rows, self.multiple_of)
        each = padded_rows // self.multiple_of
        return (np.array(self.shards, np.intp)[:, None] * each + np.arange(each)).reshape(-1)


def replica_groups(layout: BatchLayout, process_of: ProcessOf = process_of_device) -> tuple[tuple[int, ...], ...]:
    """The processes of a mesh by the rows they own, in the order of their first rows.

    Processes of one group own the same rows of every batch; the groups together own each row once. Their number is
    that of the different parts of a data set that are read.

    Args:
        layout: of the batch; see `process_rows`.
        process_of: the process of a device.

    Raises:
        DataError: two processes share some of their rows, but not all.
    """
    return tuple(group.processes for group in all_replica_groups(layout, process_of))


def replica_group(
    layout: BatchLayout | None = None,
    process_index: int | None = None,
    process_of: ProcessOf = process_of_device,
) -> ReplicaGroup:
    """The group of one process.

    Args:
        layout: of the batch, see `process_rows`; by default that of the current distribution.
        process_index: which process; by default this one.
        process_of: the process of a device.

    Raises:
        DataError: the process has no device in the mesh; processes share some of their rows, but not all; or a job of
            several processes has no distribution.
    """
    process_index = cluster.process_id() if process_index is None else process_index
    layout = scope.distribution() if layout is None else layout
    if layout is None:
        if cluster.num_processes() == 1:
            return ReplicaGroup.numbered(1, 0)
        raise DataError(
            "no distribution says which rows each process owns",
            given=f"{cluster.num_processes()} processes, no distribution",
            expected="a distribution over the devices of the job",
            fix="set_distribution(DataParallel()), or give num_groups and group_index",
        )
    for group in all_replica_groups(layout, process_of):
        if process_index in group.processes:
            return group
    raise outside_of_mesh(process_index)


def all_replica_groups(layout: BatchLayout, process_of: ProcessOf = process_of_device) -> list[ReplicaGroup]:
    """The groups of a mesh in the order of their first rows; see `replica_groups`."""
    sharding = sharding_of_rows(layout)
    count = shards_of(sharding)
    members: dict[tuple[int, ...], list[int]] = {}
    for process in sorted({process_of(device) for device in sharding.device_set}):
        shards = tuple(process_rows(sharding, count, process, process_of).tolist())
        members.setdefault(shards, []).append(process)
    if sum(map(len, members)) != count:
        raise DataError(
            "processes share some of their rows of a batch, but not all",
            given="; ".join(f"processes {processes}: shards {list(shards)}" for shards, processes in members.items()),
            expected="processes that own either the same rows or none in common",
            fix="order the devices of the mesh by process, or cut each batch by process_share",
        )
    ordered = sorted(members.items())
    return [
        ReplicaGroup(len(ordered), index, tuple(processes), shards, count)
        for index, (shards, processes) in enumerate(ordered)
    ]
