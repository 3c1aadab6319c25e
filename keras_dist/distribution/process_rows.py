"""The rows of a global batch that each process of a job owns and loads.

Each process gathers the rows of the padded global batch that its devices hold, for `make_array_from_callback`:
`make_array_from_process_local_data` does not notice wrong rows. Before a run one collective compares lengths and
orders, since processes with different numbers of steps would wait for each other forever.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from keras_dist._support.arguments import is_int

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from keras_dist._support.types import Device
from keras_dist.distribution.layout import TensorLayout
from keras_dist.errors import DataError, with_type
from keras_dist.jobs import job


class LaysOutData(Protocol):
    """Protocol of distributions, as far as `process_rows` uses them."""

    def get_data_layout(self, data_shape: Sequence[int], /) -> TensorLayout: ...  # noqa: D102


BatchLayout = jax.sharding.Sharding | TensorLayout | LaysOutData
"""Layout of a batch; only the entry of its first dim is used."""

ProcessOf = Callable[[Device], int]  # function from a device to the index of its process


def process_of_device(device: Device) -> int:
    """Return the index of the process of a device of the job."""
    return job.process_of(device)


def process_rows(
    layout: BatchLayout, global_rows: int, process_index: int | None = None, process_of: ProcessOf = process_of_device
) -> np.ndarray:
    """Return the rows of a global batch that the devices of one process hold.

    Args:
        layout: layout of the batch: a `NamedSharding`, a `TensorLayout`, or a distribution for its data layout.
        global_rows: number of rows of the global batch, including padding.
        process_index: index of the process; by default this process.
        process_of: function from a device to the index of its process.

    Returns:
        Positions in the global batch, sorted and unique; empty for a process without a device in the mesh. Processes
        along an axis that does not shard the batch, such as "model", own the same rows.

    Raises:
        DataError: the layout does not divide the rows, or has another type.

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


def wrong_rows(handed: Mapping[str, int], owned: np.ndarray, global_rows: int, process_index: int) -> DataError:
    """Return the error for a process that owns the rows `owned` but passes `handed` rows, by array name."""
    if not len(owned):
        return outside_of_mesh(process_index)
    summary = f"process {process_index} must pass {len(owned)} of the {global_rows} rows: {_describe(owned)}"
    fix = "pass process_rows(layout, global_rows) of each global batch, or the data of auto_shard_dataset"
    return DataError(summary, given=", ".join(f"{rows} rows of {name}" for name, rows in handed.items()), fix=fix)


def sharding_of_rows(layout: Any) -> jax.sharding.Sharding:
    """Return the sharding of the first dim; other dims are ignored."""
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
    """Return the number of shards of the rows."""
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
    fix = "make the mesh of list_devices(), the devices of all processes"
    return DataError(f"process {process_index} owns no row of a batch", given="a mesh without its devices", fix=fix)


def _describe(rows: np.ndarray) -> str:
    """Render sorted positions as spans, the first three: `0-3, 8-11`."""
    spans = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    text = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans[:3])
    return text + (", ..." if len(spans) > 3 else "")


@dataclasses.dataclass(frozen=True)
class ReplicaGroup:
    """Processes that own the same rows of every global batch, and must load the same rows.

    Attributes:
        count: number of groups.
        index: index of this group, ordered by the first owned row.
        processes: indices of its processes.
        shards: indices of the shards of a batch that it owns, sorted.
        multiple_of: number of shards of a batch; the rows of a batch are padded to a multiple of it.
    """

    count: int
    index: int
    processes: tuple[int, ...]
    shards: tuple[int, ...]
    multiple_of: int

    @classmethod
    def numbered(cls, count: int, index: int) -> ReplicaGroup:
        """Return group `index` of `count` groups of one process each, which own equal parts of a batch.

        Raises:
            DataError: the arguments are not integers with `0 <= index < count`.
        """
        if not is_int(count) or not is_int(index, 0, count - 1):
            summary = "`num_groups` and `group_index` must be integers with 0 <= group_index < num_groups"
            fix = "give both, or neither for the groups of the current distribution"
            raise DataError(summary, given=f"num_groups={count!r}, group_index={index!r}", fix=fix)
        return cls(int(count), int(index), (int(index),), (int(index),), int(count))

    def rows(self, padded_rows: int) -> np.ndarray:
        """Return the rows of a global batch that the group owns, as sorted, unique positions.

        Args:
            padded_rows: number of rows of the global batch.

        Raises:
            DataError: `padded_rows` is not a positive multiple of `multiple_of`.
        """
        check_divides(padded_rows, self.multiple_of)
        each = padded_rows // self.multiple_of
        return (np.array(self.shards, np.intp)[:, None] * each + np.arange(each)).reshape(-1)


def replica_groups(layout: BatchLayout, process_of: ProcessOf = process_of_device) -> tuple[tuple[int, ...], ...]:
    """Group the processes of a mesh by the rows they own, ordered by the first owned row.

    Processes of one group own the same rows of every batch, and each row is owned by one group. A dataset is read in
    as many parts as there are groups.

    Args:
        layout: layout of the batch; see `process_rows`.
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
        fix = "order the devices of the mesh by process"
        raise DataError("processes must own either the same rows of a batch, or disjoint rows", given=given, fix=fix)
    ordered = sorted(members.items())
    return [
        ReplicaGroup(len(ordered), index, tuple(processes), shards, count)
        for index, (shards, processes) in enumerate(ordered)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSlice:
    """The rows of one batch that a process loads."""

    numbers: np.ndarray  # in the batch of the source; padding repeats the last row
    positions: np.ndarray  # in the global batch, sorted
    padded: int  # rows of the global batch
    rows: int  # without padding, which comes last


@dataclasses.dataclass(frozen=True, eq=False)
class HostSlice:
    """The rows of each batch that this process loads: rows held by its devices."""

    layouts: tuple[BatchLayout, ...]  # of the arrays of a batch
    multiple_of: int  # divisor of the rows of global batches, which are padded
    is_own: bool = False  # whether the source has only the rows of this process
    process_index: int | None = None
    process_of: ProcessOf = process_of_device
    see: Callable[[Any], None] | None = None  # called with each batch of a stream, before it is sliced

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of processes that must have the same source."""
        if self.is_own:
            return replica_groups(self.layouts[0], self.process_of)
        return (tuple(range(job.process_count())),)

    def owned(self, padded_rows: int) -> np.ndarray:
        """Return the sorted positions in the global batch of the rows that some array holds on this process."""
        if padded_rows not in self._known:
            rows = [process_rows(one, padded_rows, self._process, self.process_of) for one in set(self.layouts)]
            self._known[padded_rows] = functools.reduce(np.union1d, rows)
        if not len(self._known[padded_rows]):
            raise outside_of_mesh(self._process)
        return self._known[padded_rows]

    def portion(self, rows: int) -> BatchSlice:
        """Return the rows to load of a batch of the source with `rows` rows."""
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
        """Number of groups that pass different rows, and the divisor of the rows of each group."""
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


def shard_dataset(dataset: Any, groups: Sequence[ReplicaGroup], group: ReplicaGroup) -> Any:
    """Return the batches of this process from a dataset of global batches."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(dataset, tensorflow.data.Dataset):
        summary = f"The dataset type {type(dataset)} is not supported for auto-sharding in multi-process setting."
        fix = "shard the data yourself and pass auto_shard_dataset=False to the distribution"
        raise DataError(summary, given=f"{type(dataset).__name__}, not a batched tf.data.Dataset", fix=fix)
    batch_size = _batch_size(dataset, tensorflow)
    if group.count == 1:
        return dataset.prefetch(tensorflow.data.AUTOTUNE)
    sizes = [len(each.shards) for each in groups]
    if len(set(sizes)) > 1:
        given = "; ".join(f"processes {list(each.processes)}: {len(each.shards)} shards" for each in groups)
        fix = "put equally many devices of each process into the mesh, or use auto_shard_dataset=False"
        raise DataError("the processes must own equal parts of a batch", given=given, fix=fix)
    if batch_size % group.count:
        what = "processes" if all(len(each.processes) == 1 for each in groups) else "replicas"
        given = f"global_batch_size={batch_size}, number of {what}={group.count}"
        fix = f"dataset.batch({-(-batch_size // group.count) * group.count})"
        raise DataError(f"Global batch size must be divisible by the number of {what}", given=given, fix=fix)
    return dataset.rebatch(batch_size // group.count).shard(group.count, group.index).prefetch(tensorflow.data.AUTOTUNE)


def _batch_size(dataset: Any, tensorflow: Any) -> int:
    # an optional extra, imported only for its own datasets
    from tensorflow.python.data.experimental.ops import distribute  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    specs = tensorflow.nest.flatten(dataset.element_spec)
    batched = all(hasattr(spec, "shape") and spec.shape.rank for spec in specs)
    size = int(distribute.compute_batch_size(dataset).numpy()) if batched else -1
    if size < 0:
        given = f"element_spec {dataset.element_spec}"
        raise DataError("The batch size of the input dataset is unknown.", given=given, fix="dataset.batch(batch_size)")
    return size
