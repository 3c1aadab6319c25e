"""The part of a dataset that one process reads: whole files, or rows of each global batch."""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree
from keras_dist.data.arrays import ArraySource
from keras_dist.data.conversion import check_batch_size
from keras_dist.distribution.process_rows import (
    BatchLayout,
    ProcessOf,
    ReplicaGroup,
    process_of_device,
    replica_group_of,
)
from keras_dist.distribution.strategy import distribution
from keras_dist.errors import DataError, did_you_mean, one_of, with_type
from keras_dist.jobs import job


class ShardPolicy(enum.StrEnum):
    """Ways to divide a dataset among the processes of a job. Functions also accept the string values.

    Attributes:
        AUTO: FILE if the files of the dataset are known and there is one for each group of processes, else DATA.
        DATA: every process reads all rows and keeps its part of each global batch.
        FILE: each group of processes reads whole files.
        OFF: the dataset is already the part of this process, and is returned unchanged.

    Raises:
        DataError: the policy is unknown.

    Source: `tf.data.experimental.AutoShardPolicy`.
    """

    AUTO = "auto"
    DATA = "data"
    FILE = "file"
    OFF = "off"

    @classmethod
    def _missing_(cls, value: object) -> ShardPolicy:
        options = [policy.value for policy in cls]
        near = did_you_mean(value, options) if isinstance(value, str) else ""
        raise argument_error("policy", value, one_of(options) + near, example="auto", error=DataError)


def replica_group(
    layout: BatchLayout | None = None, process_index: int | None = None, process_of: ProcessOf = process_of_device
) -> ReplicaGroup:
    """Return the group of processes that load the same rows as one process.

    Args:
        layout: layout of the batch, see `process_rows`; by default of the current distribution.
        process_index: index of the process; by default this process.
        process_of: function from a device to the index of its process.

    Raises:
        DataError: the process has no device in the mesh; processes share some of their rows, but not all; or a job of
            several processes has no distribution.
    """
    process_index = job.process_index() if process_index is None else process_index
    layout = distribution() if layout is None else layout
    if layout is not None:
        return replica_group_of(layout, process_index, process_of)
    if job.process_count() == 1:
        return ReplicaGroup.numbered(1, 0)
    given = f"{job.process_count()} processes, no distribution"
    fix = "set_distribution(DataParallel()), or give num_groups and group_index"
    raise DataError("a distribution is needed to divide rows among processes", given=given, fix=fix)


class ShareRows(NamedTuple):
    """The rows of a dataset that a group of processes reads in an epoch, batch after batch.

    Attributes:
        numbers: row numbers (rows of the group,).
        is_padding: whether they are padding, which repeats the last row of the batch (rows of the group,).
    """

    numbers: np.ndarray
    is_padding: np.ndarray


def share_rows(length: int, group: ReplicaGroup, batch_size: int | None = None) -> ShareRows:
    """Return the rows, of `length` rows in their (shuffled) order, that a group reads.

    Global batch k has the rows from k * batch_size on, and is padded as by `ArraySource`: its last row is repeated up
    to a multiple of `group.multiple_of`. The group reads the rows that its devices own, so that global batches are the
    same for any number of processes.

    Args:
        length: number of rows of the dataset.
        group: the processes that read.
        batch_size: number of rows in all global batches but the last. Without it a group reads the rows of its shards
            of every `group.multiple_of` rows, `[i::n]` for `ReplicaGroup.numbered(n, i)`: global batches whose size is
            a multiple of that number have the same rows for any number of processes, in another order.

    Raises:
        DataError: `length` is 0, or `batch_size` is not a positive integer.
    """
    size = check_batch_size(batch_size, default=group.multiple_of)
    numbers, is_padding = [], []
    for rows in ArraySource(np.arange(length)).row_numbers(size, group.multiple_of):
        padded = rows.padded
        owned = group.rows(padded.shape[1])
        numbers.append(padded[:, owned].reshape(-1))
        is_padding.append(np.tile(owned >= rows.real, len(padded)))
    return ShareRows(np.concatenate(numbers), np.concatenate(is_padding))


def shard_batch(batch: PyTree, group: ReplicaGroup | None = None) -> PyTree:
    """Return copies of the rows of a padded global batch that this process owns.

    Args:
        batch: arrays or a pytree of arrays with one length.
        group: the processes that read; by default the group of this process in the current distribution.

    Raises:
        DataError: `batch` is empty or not such a pytree; or see `replica_group`.
    """
    group = replica_group() if group is None else group
    source = ArraySource(batch)
    (rows,) = source.row_numbers(source.length, group.multiple_of)
    (padded,) = rows.padded
    numbers = padded[group.rows(len(padded))]
    return jax.tree.map(lambda leaf: leaf.take(numbers, axis=0), source.x)


def auto_shard_dataset(
    dataset: Any = None,
    policy: ShardPolicy | str = ShardPolicy.AUTO,
    *,
    batch_size: int | None = None,
    files: Iterable[Any] | None = None,
    num_groups: int | None = None,
    group_index: int | None = None,
    group: ReplicaGroup | None = None,
) -> Any:
    """Return the part of a dataset that this process reads.

    The dataset is divided among groups of processes that own the same rows; if the model axis spans processes, there
    are fewer groups than processes. With one group nothing is cut or padded.

    Under DATA all processes must read the rows in the same order (shuffle with the same seed). Batches are padded to a
    number of rows that the mesh divides, so that all groups get the same number of batches; see `share_rows`. Under
    FILE groups may get different numbers of rows: stop all after the same step.

    Args:
        dataset: the rows: arrays or a pytree of arrays with one length; an object with `__len__` and `__getitem__` by
            number; an iterable. With `files`, a function from a list of files to one of these, or None. For batches use
            `shard_batch`.
        policy: a `ShardPolicy` or its value.
        batch_size: number of rows of a global batch, see `share_rows`.
        files: the files of the rows, in an order that is the same in all processes. Not needed for a dataset with
            `files` and `with_files(files)`.
        num_groups: number of groups; by default of the current distribution.
        group_index: index of the group that reads.
        group: the group that reads, instead of `num_groups` and `group_index`.

    Returns:
        For arrays and pytrees of them, copies of the rows of the group. For sequences and iterables, views that read
        rows on demand; an iterable is read one global batch at a time. Under FILE, the result of `dataset` or
        `with_files` for the group's files, or the list of these if `dataset` is None.

    Raises:
        DataError: the policy or group is invalid; the dataset has no rows in a fixed order; FILE without files, or with
            fewer files than groups; DATA with file names only.

    Example:
        >>> from keras_dist.data import auto_shard_dataset
        >>> list(auto_shard_dataset(range(8), batch_size=4, num_groups=2, group_index=0))
        [0, 1, 4, 5]
        >>> auto_shard_dataset(None, "file", files=["a", "b", "c"], num_groups=2, group_index=0)
        ['a', 'c']

    Source: `tf.data.experimental.AutoShardPolicy`, `tf.data.Dataset.shard`.
    """
    policy = ShardPolicy(policy)
    known = _files(dataset, files)
    if policy is ShardPolicy.OFF:
        return dataset if known is None else known.open(known.names)
    reader = _reader(num_groups, group_index, group)
    if policy is ShardPolicy.AUTO:
        enough = known is not None and len(known.names) >= reader.count
        policy = ShardPolicy.FILE if enough else ShardPolicy.DATA
    if policy is ShardPolicy.FILE:
        return _share_of_files(known, reader)
    if dataset is None:
        given = f"names of files alone, {reader.count} groups of processes" if known else "dataset=None"
        fix = "auto_shard_dataset(open_files, files=files), with at least one file for each group"
        raise DataError("there are no rows to divide", given=given, fix=fix)
    rows = known.open(known.names) if known is not None else dataset
    return rows if reader.count == 1 else _share_of_rows(rows, reader, batch_size)


class _Files(NamedTuple):
    names: list[Any]
    open: Callable[[list[Any]], Any]


def _files(dataset: Any, files: Iterable[Any] | None) -> _Files | None:
    """Return the files of a dataset, if they are known, and a function that opens some of them."""
    if files is not None:
        if dataset is not None and not callable(dataset):
            summary = "with `files`, `dataset` must be a function that opens them, or None"
            given = f"a {type(dataset).__name__} and files"
            raise DataError(summary, given=given, fix="auto_shard_dataset(open_files, files=files), or leave files out")
        return _Files(_in_order(files), list if dataset is None else dataset)
    names, with_files = getattr(dataset, "files", None), getattr(dataset, "with_files", None)
    return _Files(_in_order(names), with_files) if names is not None and callable(with_files) else None


def _in_order(files: Any) -> list[Any]:
    if isinstance(files, Iterable) and not isinstance(files, str | bytes | os.PathLike | Set):
        return list(files)
    expected = "a list of names or paths, in an order that is the same in all processes"
    raise argument_error("files", files, expected, fix="files=sorted(...)", error=DataError)


def _reader(num_groups: int | None, group_index: int | None, group: ReplicaGroup | None) -> ReplicaGroup:
    if num_groups is None and group_index is None:
        return replica_group() if group is None else group
    if group is not None:
        given = f"num_groups={num_groups!r}, group_index={group_index!r}, {group}"
        fix = "leave one of them out"
        raise DataError("`group` cannot be used with `num_groups` and `group_index`", given=given, fix=fix)
    return ReplicaGroup.numbered(num_groups, group_index)  # pyright: ignore[reportArgumentType]


def _share_of_files(known: _Files | None, reader: ReplicaGroup) -> Any:
    if known is None or len(known.names) < reader.count:
        given = "a dataset with unknown files" if known is None else f"{len(known.names)} files"
        fix = "policy='data', or files=[...]" if known is None else "policy='data', or write more, smaller files"
        raise DataError(f"{reader.count} groups of processes need at least one file each", given=given, fix=fix)
    return known.open(known.names[reader.index :: reader.count])


def _share_of_rows(dataset: Any, reader: ReplicaGroup, batch_size: int | None) -> Any:
    # JAX will refuse iterators inside a tree
    leaves = jax.tree.leaves(dataset, is_leaf=lambda node: isinstance(node, Iterator))
    if leaves and all(getattr(leaf, "shape", ()) and hasattr(leaf, "dtype") for leaf in leaves):
        source = ArraySource(dataset)
        numbers = share_rows(source.length, reader, batch_size).numbers
        return jax.tree.map(lambda leaf: leaf.take(numbers, axis=0), source.x)
    if not isinstance(dataset, str | bytes | Mapping | Set):
        if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
            return _SequenceShare(dataset, share_rows(len(dataset), reader, batch_size).numbers)
        if hasattr(dataset, "__iter__"):
            return _IterableShare(dataset, reader, check_batch_size(batch_size, default=reader.multiple_of))
    summary = "`dataset` must have rows in a fixed order: arrays, __len__ and __getitem__, or an iterable"
    raise DataError(summary, given=with_type(dataset), fix="divide it yourself and pass policy='off'")


class _SequenceShare(Sequence[Any]):
    """Some rows of a sequence, read on demand."""

    def __init__(self, rows: Any, numbers: np.ndarray) -> None:
        self._rows, self._numbers = rows, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _SequenceShare(self._rows, self._numbers[index])
        return self._rows[int(self._numbers[index])]


class _IterableShare:
    """The rows of a group, from each global batch of an iterable."""

    def __init__(self, rows: Iterable[Any], reader: ReplicaGroup, batch_size: int) -> None:
        self._rows, self._reader, self._batch_size = rows, reader, batch_size

    def __iter__(self) -> Iterator[Any]:
        rows = iter(self._rows)
        while batch := list(itertools.islice(rows, self._batch_size)):
            padded = batch + batch[-1:] * (-len(batch) % self._reader.multiple_of)
            yield from (padded[position] for position in self._reader.rows(len(padded)))
