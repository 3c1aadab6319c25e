"""`ArrayStore`: named arrays in files of any format, and their transfer to the arrays of a model.

Formats differ in how names and bytes are stored. Everything after that is written once, here: comparing checksums,
narrowing element types, and reading for each device the part that it holds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import backend_environment
from keras_dist._support.located_warnings import warn
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.distribution.placement import copied_by_jax
from keras_dist.errors import ModelError
from keras_dist.files import regular_files
from keras_dist.files.tensor_format import in_memory_order, in_parts
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.formats.h5_files import H5Reader
from keras_dist.training.state_cell import StateCell

_LARGE_BYTES = 1 << 20
_HUGE_BYTES = 1 << 26

T = TypeVar("T")

PartReader = Callable[[Any], np.ndarray]  # returns the part of an array at an index, a tuple of slices


ArrayStore = H5Reader | TensorReader
"""Named arrays in files: their `shapes`, `dtype(name)`, `read(name, index)`, `parts(name)` and checksums."""


def is_complex(store: ArrayStore, name: str) -> bool:
    """Whether a dtype is complex."""
    return jnp.issubdtype(store.dtype(name), jnp.complexfloating)


def set_array(cell: StateCell, place: int, read: PartReader, store: ArrayStore, name: str) -> None:
    """Set the array at this place in the plan; each device of this process reads its part, one after the other.

    The old array of a stack of layers may have a quarter of a model's bytes. It is deleted before the new one is read,
    unless the user holds it.
    """
    row, sharding = cell.state_plan.rows[place], jax.tree.leaves(cell.state_plan.shardings)[place]
    if row.nbytes >= _HUGE_BYTES:
        with cell.lock:
            cell.free(place)
        backend_environment.release_freed_memory()
    shards = _shards(row.shape, sharding, lambda index: narrowed(read(index), row.dtype, store, name))
    with cell.lock:
        cell.put({place: jax.make_array_from_single_device_arrays(row.shape, sharding, shards)})
    release_after(row.nbytes)


def _shards(shape: tuple[int, ...], sharding: jax.sharding.Sharding, read: PartReader) -> list[jax.Array]:
    """Return the parts of an array that devices of this process hold; the host has one at a time."""
    places = sharding.addressable_devices_indices_map(shape)
    shards: dict[Any, jax.Array] = {}
    for index in {str(index): index for index in places.values()}.values():
        part = copied_by_jax(read(index))
        for device, here in places.items():
            if here == index:
                at = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
                shards[device] = jax.device_put(part, at).block_until_ready()
        del part
    return [shards[device] for device in places]


def release_after(nbytes: int) -> None:
    """Return freed memory to the operating system after an array of this size, if it is large."""
    if nbytes >= _LARGE_BYTES:
        backend_environment.release_freed_memory()


def check_narrowed(store: ArrayStore, name: str, dtype: Any) -> None:
    """Check that an array keeps its values in another dtype, in small chunks."""
    if is_narrower(dtype, store.dtype(name)):
        for part in store.parts(name):
            narrowed(part, dtype, store, name)


def narrowed(array: np.ndarray, dtype: Any, store: Any, name: str) -> np.ndarray:
    """Return a copy of a stored array in another dtype; raise if a finite number becomes infinite.

    Its dims have the order in memory that they have in the file.
    """
    if np.iscomplexobj(array) and not jnp.issubdtype(dtype, jnp.complexfloating):
        summary = f"{store.caller}: {name!r} in {str(store.path)!r} is complex"
        given = f"an array of {array.dtype.name} for one of {jnp.dtype(dtype).name}"
        raise ModelError(summary, given=given, fix="build the model with a complex dtype, or correct the file")
    with np.errstate(all="ignore"):
        found = np.array(array, dtype)  # in the order of the file: XLA transposes faster than numpy
    if is_narrower(dtype, array.dtype):
        order = in_memory_order(found)
        for before, after in zip(in_parts(array.transpose(order)), in_parts(found.transpose(order)), strict=True):
            _check_kept(before, after, store, name)
    return found


def _check_kept(array: np.ndarray, found: np.ndarray, store: Any, name: str) -> None:
    """Check that finite numbers stayed finite, and whole numbers equal."""
    if jnp.issubdtype(found.dtype, jnp.integer):
        lost = (array if jnp.issubdtype(array.dtype, jnp.integer) else np.trunc(array)) != found
    else:
        lost = ~np.isfinite(found)
        lost = lost & np.isfinite(array) if lost.any() else lost
    if lost.any():
        type_name = found.dtype.name
        summary = f"{store.caller}: {name!r} in {str(store.path)!r} holds a number that {type_name} cannot hold"
        given = f"{np.asarray(array)[lost][0]}, of {array.dtype.name}"
        raise ModelError(summary, given=given, fix="build the model with a wider dtype, or correct the file")


def is_narrower(dtype: Any, stored: Any) -> bool:
    """Whether an element type cannot hold all numbers of another one."""
    if is_key_dtype(dtype) or not jnp.issubdtype(dtype, jnp.number) or np.can_cast(stored, dtype, "safe"):
        return False
    are_floats = all(jnp.issubdtype(each, jnp.floating) for each in (dtype, stored))
    return not are_floats or bool(jnp.finfo(dtype).max < jnp.finfo(stored).max)  # rounding is not a loss


def retried(load: Callable[[], T]) -> T:
    """Return `load()`; call it again while files are being overwritten, except in jobs."""
    return load() if jax.process_count() > 1 else regular_files.retried(load)


_warned: list[pathlib.Path] = []


def warn_unchecked(store: ArrayStore, names: Iterable[str]) -> None:
    """Warn, once per process, that damage to some of these arrays would go undetected."""
    if _warned or not store.lacks_checksums(names):
        return
    _warned.append(store.path)
    warn(
        f"{store.caller}: {str(store.path)!r} has no checksums, so that damaged bytes would not be noticed: keras_dist "
        "did not write it; model.save_weights writes checksums"
    )
