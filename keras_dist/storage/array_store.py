"""`ArrayStore`: named arrays in files of any format, and their transfer to the arrays of a model.

Formats differ in how names and bytes are stored. Everything after that is written once, here: comparing checksums,
narrowing element types, and reading for each device the part that it holds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.located_warnings import warn
from keras_dist._unstable.jax_internals import is_key_dtype
from keras_dist.distribution.placement import place_copy
from keras_dist.errors import ModelError
from keras_dist.saving import regular_files
from keras_dist.training.state_cell import StateCell

T = TypeVar("T")

PartReader = Callable[[Any], np.ndarray]
"""Returns the part of an array at an index, a tuple of slices."""


class ArrayStore(Protocol):
    """Protocol of named arrays in files."""

    @property
    def caller(self) -> str:
        """The name of the caller in error messages."""
        ...

    @property
    def path(self) -> pathlib.Path:
        """The file, index or folder."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each array."""
        ...

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the element type of an array."""
        ...

    def lacks_checksums(self, names: Iterable[str]) -> bool:
        """Whether damage to any of these arrays would go undetected."""
        ...

    def check(self, names: Iterable[str]) -> None:
        """Compare arrays with their checksums."""
        ...

    def read(self, name: str, index: Any = ()) -> np.ndarray:
        """Read the slice `index` of the array `name`."""
        ...

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield consecutive slices of the array `name`, for arrays larger than memory."""
        ...


def is_complex(store: ArrayStore, name: str) -> bool:
    """Whether a dtype is complex."""
    return jnp.issubdtype(store.dtype(name), jnp.complexfloating)


def set_array(cell: StateCell, place: int, read: PartReader, store: ArrayStore, name: str) -> None:
    """Set an array of a model; each device of this process reads only its shard.

    Args:
        cell: owns the arrays of the model.
        place: index of the array in the plan.
        read: reads parts.
        store: the files to read.
        name: name of the array in error messages.
    """
    row, sharding = cell.state_plan.rows[place], jax.tree.leaves(cell.state_plan.shardings)[place]
    found: dict[str, np.ndarray] = {}

    def part(index: Any) -> np.ndarray:
        key = str(index)  # devices with the same part share it
        if key not in found:
            found[key] = narrowed(read(index), row.dtype, store, name)
        return found[key]

    array = jax.make_array_from_callback(row.shape, sharding, part)
    with cell.lock:
        cell.put({place: place_copy(array, sharding)})  # on CPUs it may share the memory of the host's array


def check_narrowed(store: ArrayStore, name: str, dtype: Any) -> None:
    """Check that an array keeps its values in another dtype, in small chunks."""
    if is_narrower(dtype, store.dtype(name)):
        for part in store.parts(name):
            narrowed(part, dtype, store, name)


def narrowed(array: np.ndarray, dtype: Any, store: Any, name: str) -> np.ndarray:
    """Return a copy of a stored array in another dtype; raise if a finite number becomes infinite."""
    if np.iscomplexobj(array) and not jnp.issubdtype(dtype, jnp.complexfloating):
        summary = f"{store.caller}: {name!r} in {str(store.path)!r} is complex"
        given = f"an array of {array.dtype.name} for one of {jnp.dtype(dtype).name}"
        raise ModelError(summary, given=given, fix="build the model with a complex dtype, or correct the file")
    with np.errstate(all="ignore"):
        found = np.array(array, dtype)
    if not is_narrower(dtype, array.dtype):
        return found
    is_integer = jnp.issubdtype(found.dtype, jnp.integer)
    whole = array if jnp.issubdtype(array.dtype, jnp.integer) else np.trunc(array)
    lost = whole != found if is_integer else np.isfinite(array) & ~np.isfinite(found)
    if lost.any():
        type_name = found.dtype.name
        summary = f"{store.caller}: {name!r} in {str(store.path)!r} holds a number that {type_name} cannot hold"
        given = f"{np.asarray(array)[lost][0]}, of {array.dtype.name}"
        raise ModelError(summary, given=given, fix="build the model with a wider dtype, or correct the file")
    return found


def is_narrower(dtype: Any, stored: Any) -> bool:
    """Whether a dtype cannot represent all numbers of another dtype."""
    return not is_key_dtype(dtype) and jnp.issubdtype(dtype, jnp.number) and not np.can_cast(stored, dtype, "safe")


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
