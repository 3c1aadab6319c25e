"""Which rows of a global batch each process of a job owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from keras_dist.distribution import cluster
from keras_dist.distribution.layout import TensorLayout
from keras_dist.errors import DataError, shorten


class LaysOutData(Protocol):
    """A distribution."""

    def get_data_layout(self, data_shape: Sequence[int], /) -> TensorLayout:
        """The layout of input data of `data_shape`."""
        ...


BatchLayout = jax.sharding.Sharding | TensorLayout | LaysOutData
"""What says where the rows of a batch live; only its first dim counts."""

ProcessOf = Callable[[Any], int]
"""The index of the process that a device belongs to."""


def process_of_device(device: Any) -> int:
    """The process of a device of the job."""
    return cluster.process_of(device)


def process_rows(
    layout: BatchLayout,
    global_rows: int,
    process_index: int | None = None,
    process_of: ProcessOf = process_of_device,
) -> np.ndarray:
    """The rows of a global batch that the devices of one process hold.

    Args:
        layout: of the batch: a `NamedSharding`, a `TensorLayout`, or a distribution for its data layout.
        global_rows: rows of the global batch, padding included.
        process_index: which process; by default this one.
        process_of: the process of a device.

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
    process_index = cluster.process_id() if process_index is None else process_index
    spans = {
        index.indices(global_rows)
        for device, (index,) in sharding.devices_indices_map((global_rows,)).items()
        if process_of(device) == process_index
    }
    return np.concatenate([np.empty(0, np.intp), *(np.arange(*span, dtype=np.intp) for span in sorted(spans))])


def process_share(
    padded_row_numbers: Any,
    layout: BatchLayout,
    process_index: int | None = None,
    process_of: ProcessOf = process_of_device,
) -> np.ndarray:
    """The row numbers of global batches, cut to those of one process.

    The shares of all processes, put back at their `process_rows`, are the global batches: the same ones for any number
    of processes.

    Args:
        padded_row_numbers: (batches, padded rows) or (padded rows,), as of `ArraySource.row_numbers`.
        layout: of the batches; see `process_rows`.
        process_index: which process; by default this one.
        process_of: the process of a device.

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
    """Nothing, if a process hands over as many rows as it owns.

    `jax.make_array_from_process_local_data` does not notice wrong ownership: it may make an array of another
    length.

    Args:
        local_rows: rows that the process hands over.
        layout: of the batch; see `process_rows`.
        global_rows: rows of the global batch, padding included.
        process_index: which process; by default this one.
        process_of: the process of a device.
        name: how the error calls the rows.

    Raises:
        DataError: it owns another number of rows, or none at all.
    """
    process_index = cluster.process_id() if process_index is None else process_index
    owned = process_rows(layout, global_rows, process_index, process_of)
    if not local_rows == len(owned) > 0:
        raise wrong_rows({name: local_rows}, owned, global_rows, process_index)


def wrong_rows(handed: Mapping[str, int], owned: np.ndarray, global_rows: int, process_index: int) -> DataError:
    """What is wrong with the rows, by name, that a process hands over where it owns `owned`."""
    if not len(owned):
        return outside_of_mesh(process_index)
    return DataError(
        f"process {process_index} hands over another number of rows than it owns of the global batch",
        given=", ".join(f"{rows} rows of {name}" for name, rows in handed.items()),
        expected=f"{len(owned)} of the {global_rows} rows: {_describe(owned)}",
        fix="hand over process_rows(layout, global_rows) of each global batch, or what auto_shard_dataset gives",
    )


def sharding_of_rows(layout: Any) -> jax.sharding.Sharding:
    """The sharding of the first dim alone.

    Raises:
        DataError: `layout` is no layout of a batch.
    """
    sharding = layout.get_data_layout((1,)) if hasattr(layout, "get_data_layout") else layout
    if isinstance(sharding, TensorLayout):
        sharding = sharding.backend_layout
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*tuple(sharding.spec)[:1]))
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return sharding
    raise DataError(
        "this is no layout of a batch",
        given=f"{shorten(layout)} of type {type(layout).__name__}",
        expected="a jax.sharding.NamedSharding, a TensorLayout with a mesh, or a Distribution",
        fix="for example distribution().get_data_layout(shape)",
    )


def shards_of(sharding: jax.sharding.Sharding) -> int:
    """Into how many parts `sharding` divides the rows."""
    devices = len(sharding.device_set)
    return devices // sharding.shard_shape((devices,))[0]


def check_divides(global_rows: Any, shards: int) -> None:
    """Nothing, if the rows are a positive multiple of the shards.

    Raises:
        DataError: they are not.
    """
    is_count = isinstance(global_rows, int | np.integer) and global_rows > 0
    if is_count and global_rows % shards == 0:
        return
    padded = -(-global_rows // shards) * shards if is_count else shards
    raise DataError(
        "the rows of a global batch cannot be divided among its shards",
        given=f"{global_rows!r} rows",
        expected=f"a positive multiple of {shards}",
        fix=f"repeat the last row until there are {padded}",
    )


def outside_of_mesh(process_index: int) -> DataError:
    """What is wrong with a process without a device in the mesh."""
    return DataError(
        f"process {process_index} owns no row of a batch",
        given="a mesh without a device of this process",
        expected="at least one device of each process that trains",
        fix="make the mesh of list_devices(), the devices of all processes",
    )


def _describe(rows: np.ndarray) -> str:
    """Sorted positions as spans, the first three: `0-3, 8-11`."""
    spans = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    text = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans[:3])
    return text + (", ..." if len(spans) > 3 else "")
