"""Which rows of a global batch each process of a job owns, loads and gathers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from keras_dist._support.arguments import is_int

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# JAX's own types are unknown in part
from keras_dist._support.types import Device
from keras_dist.distribution.jobs import job
from keras_dist.distribution.layout import TensorLayout
from keras_dist.errors import DataError, with_type


class LaysOutData(Protocol):
    """A distribution, as `process_rows` sees it."""

    def get_data_layout(self, data_shape: Sequence[int], /) -> TensorLayout: ...  # noqa: D102


BatchLayout = jax.sharding.Sharding | TensorLayout | LaysOutData
"""What says where the rows of a batch live; only its first dim counts."""

ProcessOf = Callable[[Device], int]
"""The index of the process that a device belongs to."""


def process_of_device(device: Device) -> int:
    """Return the process of a device of the job."""
    return job.process_of(device)


def process_rows(
    layout: BatchLayout,
    global_rows: int,
    process_index: int | None = None,
    process_of: ProcessOf = process_of_device,
) -> np.ndarray:
    """Return the rows of a global batch that the devices of one process hold.

    Args:
        layout: of the batch: a `NamedSharding`, a `TensorLayout`, or a distribution for its data layout.
        global_rows: rows of the global batch, padding included.
        process_index: which process; by default this one.
        process_of: function from a device to the index of its process.

    Returns:
        Positions in the global batch, sorted and unique; none for a process without a device in the mesh. Processes
        along an axis that does not shard the batch, such as "model", get the same ones.

    Raises:
        DataError: the layout does not divide the rows, or is none of these.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist.data import process_rows
        >>> one = kd.DataParallel(devices=kd.list_devices()[:1])
        >>> process_rows(one, 4)
        array([0, 1, 2, 3])

    Source: `jax.sharding.Sharding.devices_indices_map`.
    """
    sharding = sharding_of_rows(layout)
    check_divides(global_rows, shards_of(sharding))
    process_index = job.process_index() if process_index is None else process_index
    spans = {
        index.indices(global_rows)
        for device, (index,) in sharding.devices_indices_map((global_rows,)).items()
        if process_of(device) == process_index
    }
    return np.concatenate([np.empty(0, np.intp), *(np.arange(*span, dtype=np.intp) for span in sorted(spans))])


def process_share(
    padded_row_numbers: np.ndarray | Sequence[int] | Sequence[Sequence[int]],
    layout: BatchLayout,
    process_index: int | None = None,
    process_of: ProcessOf = process_of_device,
) -> np.ndarray:
    """Cut the row numbers of global batches to those of one process.

    The shares of all processes, put back at their `process_rows`, are the global batches.

    Args:
        padded_row_numbers: (batches, padded rows) or (padded rows,), as of `ArraySource.row_numbers`.
        layout: of the batches; see `process_rows`.
        process_index: which process; by default this one.
        process_of: function from a device to the index of its process.

    Returns:
        (batches, rows of the process) or (rows of the process,).

    Raises:
        DataError: the layout does not divide the padded rows.
    """
    numbers = np.asarray(padded_row_numbers)
    return numbers[..., process_rows(layout, numbers.shape[-1], process_index, process_of)]


def check_process_rows(
    local_rows: int,
    layout: BatchLayout,
    global_rows: int,
    process_index: int | None = None,
    process_of: ProcessOf = process_of_device,
    name: str = "batch",
) -> None:
    """Check that a process passes as many rows as it owns.

    `jax.make_array_from_process_local_data` does not notice wrong ownership: it may make an array of another length.

    Args:
        local_rows: number of rows that the process passes.
        layout: of the batch; see `process_rows`.
        global_rows: rows of the global batch, padding included.
        process_index: which process; by default this one.
        process_of: function from a device to the index of its process.
        name: name of the rows in the error message.

    Raises:
        DataError: it owns another number of rows, or none at all.
    """
    process_index = job.process_index() if process_index is None else process_index
    owned = process_rows(layout, global_rows, process_index, process_of)
    if not local_rows == len(owned) > 0:
        raise wrong_rows({name: local_rows}, owned, global_rows, process_index)


def wrong_rows(handed: Mapping[str, int], owned: np.ndarray, global_rows: int, process_index: int) -> DataError:
    """Return the error for numbers of rows, by name, of a process that owns the rows `owned`."""
    if not len(owned):
        return outside_of_mesh(process_index)
    summary = f"process {process_index} must hand over {len(owned)} of the {global_rows} rows: {_describe(owned)}"
    fix = "hand over process_rows(layout, global_rows) of each global batch, or what auto_shard_dataset gives"
    return DataError(summary, given=", ".join(f"{rows} rows of {name}" for name, rows in handed.items()), fix=fix)


def sharding_of_rows(layout: Any) -> jax.sharding.Sharding:
    """Return the sharding of the first dim alone."""
    sharding = layout.get_data_layout((1,)) if hasattr(layout, "get_data_layout") else layout
    if isinstance(sharding, TensorLayout):
        sharding = sharding.backend_layout
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*tuple(sharding.spec)[:1]))
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return sharding
    summary = "a layout of a batch must be a jax.sharding.NamedSharding, a TensorLayout with a mesh, or a Distribution"
    raise DataError(summary, given=with_type(layout), fix="for example distribution().get_data_layout(shape)")


def shards_of(sharding: jax.sharding.Sharding) -> int:
    """Return the number of parts into which `sharding` divides the rows."""
    devices = len(sharding.device_set)
    return devices // sharding.shard_shape((devices,))[0]


def check_divides(global_rows: int, shards: int) -> None:
    """Check that the rows are a positive multiple of the shards."""
    is_count = is_int(global_rows, 1)
    if is_count and global_rows % shards == 0:
        return
    padded = -(-global_rows // shards) * shards if is_count else shards
    summary = f"the rows of a global batch must be a positive multiple of its {shards} shards"
    raise DataError(summary, given=f"{global_rows!r} rows", fix=f"repeat the last row until there are {padded}")


def outside_of_mesh(process_index: int) -> DataError:
    """Return the error for a process without a device in the mesh."""
    given = "a mesh without a device of this process"
    fix = "make the mesh of list_devices(), the devices of all processes"
    return DataError(f"process {process_index} owns no row of a batch", given=given, fix=fix)


def _describe(rows: np.ndarray) -> str:
    """Render sorted positions as spans, the first three: `0-3, 8-11`."""
    spans = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    text = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans[:3])
    return text + (", ..." if len(spans) > 3 else "")


@dataclasses.dataclass(frozen=True)
class ReplicaGroup:
    """Processes that own the same rows of every global batch, and so must load identical rows.

    Attributes:
        count: number of such groups.
        index: index of this one, in the order of the first rows that they own.
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
        """Return group `index` of `count`, each of one process that owns an equal part of a batch.

        Raises:
            DataError: they are not integers with `0 <= index < count`.
        """
        if not is_int(count) or not is_int(index, 0, count - 1):
            summary = "`num_groups` and `group_index` must be integers with 0 <= group_index < num_groups"
            fix = "give both, or neither for the groups of the current distribution"
            raise DataError(summary, given=f"num_groups={count!r}, group_index={index!r}", fix=fix)
        return cls(int(count), int(index), (int(index),), (int(index),), int(count))

    def rows(self, padded_rows: int) -> np.ndarray:
        """Return the rows that it owns of a global batch: sorted, unique positions in it.

        Args:
            padded_rows: rows of the global batch, a multiple of `multiple_of`.

        Raises:
            DataError: `padded_rows` is not such a multiple.
        """
        check_divides(padded_rows, self.multiple_of)
        each = padded_rows // self.multiple_of
        return (np.array(self.shards, np.intp)[:, None] * each + np.arange(each)).reshape(-1)


def replica_groups(layout: BatchLayout, process_of: ProcessOf = process_of_device) -> tuple[tuple[int, ...], ...]:
    """Return the processes of a mesh by the rows they own, in the order of their first rows.

    Processes of one group own the same rows of every batch; the groups together own each row once. Their number is
    that of the different parts of a data set that are read.

    Args:
        layout: of the batch; see `process_rows`.
        process_of: function from a device to the index of its process.

    Raises:
        DataError: two processes share some of their rows, but not all.
    """
    return tuple(group.processes for group in all_replica_groups(layout, process_of))


def replica_group_of(
    layout: BatchLayout, process_index: int, process_of: ProcessOf = process_of_device
) -> ReplicaGroup:
    """Return the group of a process; see `replica_groups`."""
    for group in all_replica_groups(layout, process_of):
        if process_index in group.processes:
            return group
    raise outside_of_mesh(process_index)


def all_replica_groups(layout: BatchLayout, process_of: ProcessOf = process_of_device) -> list[ReplicaGroup]:
    """Return the groups of a mesh in the order of their first rows; see `replica_groups`."""
    sharding = sharding_of_rows(layout)
    count = shards_of(sharding)
    members: dict[tuple[int, ...], list[int]] = {}
    for process in sorted({process_of(device) for device in sharding.device_set}):
        shards = tuple(process_rows(sharding, count, process, process_of).tolist())
        members.setdefault(shards, []).append(process)
    if sum(map(len, members)) != count:
        given = "; ".join(f"processes {processes}: shards {list(shards)}" for shards, processes in members.items())
        fix = "order the devices of the mesh by process, or cut each batch by process_share"
        raise DataError("processes must own either the same rows of a batch, or none in common", given=given, fix=fix)
    ordered = sorted(members.items())
    return [
        ReplicaGroup(len(ordered), index, tuple(processes), shards, count)
        for index, (shards, processes) in enumerate(ordered)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSlice:
    """The rows of one batch that a process gathers.

    Attributes:
        numbers: indices of the rows in the batch of the source; padding repeats the last row.
        positions: of these rows in the global batch, sorted.
        padded: rows of the global batch.
        rows: number of real ones, which come first.
    """

    numbers: np.ndarray
    positions: np.ndarray
    padded: int
    rows: int


@dataclasses.dataclass(frozen=True, eq=False)
class HostSlice:
    """Which rows of each batch this process gathers: those that its devices hold.

    Attributes:
        layouts: of the arrays of a batch, whose rows may be laid out differently.
        multiple_of: global batches are padded to a multiple of this many rows.
        is_own: whether the source holds only the rows of this process; else it holds those of all.
        process_index: which process; None for this one.
        process_of: function from a device to the index of its process.
        see: called with each batch of a stream, a pytree of arrays, before it is cut.
    """

    layouts: tuple[BatchLayout, ...]
    multiple_of: int
    is_own: bool = False
    process_index: int | None = None
    process_of: ProcessOf = process_of_device
    see: Callable[[Any], None] | None = None

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The processes, by the source that each of them must have alike."""
        if self.is_own:
            return replica_groups(self.layouts[0], self.process_of)
        return (tuple(range(job.process_count())),)

    def owned(self, padded_rows: int) -> np.ndarray:
        """Return the sorted positions in the global batch of the rows that some array has on this process."""
        if padded_rows not in self._known:
            rows = [process_rows(one, padded_rows, self._process, self.process_of) for one in set(self.layouts)]
            self._known[padded_rows] = functools.reduce(np.union1d, rows)
        if not len(self._known[padded_rows]):
            raise outside_of_mesh(self._process)
        return self._known[padded_rows]

    def portion(self, rows: int) -> BatchSlice:
        """Return which rows to load of a batch of the source with `rows` rows."""
        if not self.is_own:
            padded = -(-rows // self.multiple_of) * self.multiple_of
            positions = self.owned(padded)
            return BatchSlice(np.minimum(positions, rows - 1), positions, padded, rows)
        count, each = self._parts
        if rows % each:
            summary = f"the rows that a process gives must be a multiple of {each} in every batch"
            fix = f"batches of {-(-rows // each) * each} rows, or auto_shard_dataset=True and all rows everywhere"
            raise DataError(summary, given=f"a batch of {rows} rows, auto_shard_dataset=False", fix=fix)
        return BatchSlice(np.arange(rows), self.owned(rows * count), rows * count, rows * count)

    @functools.cached_property
    def _known(self) -> dict[int, np.ndarray]:
        return {}

    @property
    def _process(self) -> int:
        return job.process_index() if self.process_index is None else self.process_index

    @functools.cached_property
    def _parts(self) -> tuple[int, int]:
        """The number of groups that give rows of their own, and what those of each must be a multiple of."""
        grouped = {tuple(all_replica_groups(layout, self.process_of)) for layout in set(self.layouts)}
        owned = {tuple(tuple(group.rows(self.multiple_of)) for group in groups) for groups in grouped}
        sizes = {len(rows) for each in owned for rows in each}
        if len(sizes) > 1 or len(owned) > 1:
            summary = "processes that each give their own rows must have equally many shards of a batch"
            given = "auto_shard_dataset=False, and " + "; ".join(_described(groups) for groups in grouped)
            raise DataError(summary, given=given, fix="auto_shard_dataset=True, and all rows in every process")
        return len(next(iter(grouped))), sizes.pop()


def _described(groups: tuple[ReplicaGroup, ...]) -> str:
    return ", ".join(f"processes {list(group.processes)}: {len(group.shards)} shards" for group in groups)
