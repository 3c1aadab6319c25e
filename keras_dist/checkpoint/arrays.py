"""Arrays by name, written to an orbax folder and read from it, also in other layouts.

Each process writes what its devices hold, by orbax's handler. Who makes, checks and moves the folder is agreed in a
`Rendezvous`: orbax's own checkpointer meets on the devices, where a save in a thread would come between the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import pathlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from keras_dist._unstable.jax_internals import is_key_dtype, key_impl
from keras_dist.distribution.placement import place_copy
from keras_dist.errors import CheckpointError, cause
from keras_dist.files.buckets import absolute, refreshed
from keras_dist.jobs.rendezvous import Rendezvous

FOLDER = "arrays"
_MERGED = "manifest.ocdbt"  # written by orbax when it merges files of the processes; needed for reading
_FILE_BYTES = 64 * 2**20  # approximate size of files, several of which can be checked at once
_SLICE_BYTES = 16 * 2**20  # of a replicated array that each device writes; slices need a program for each shape


def write_arrays(
    folder: pathlib.Path, arrays: Mapping[str, jax.Array | np.ndarray], job: Rendezvous | None = None
) -> Callable[[], None]:
    """Start writing arrays, each shard by a process that holds it; arrays on the host by the first process.

    Later steps may donate the arrays. On CPUs this returns when copies are dispatched; on other devices, whose memory
    is scarce, when arrays are on the host. Returns a function that waits until all are written, to be called once, in
    any thread; it raises errors of writing.
    """
    from orbax import checkpoint as orbax  # noqa: PLC0415  # importing it takes as long as keras_dist
    from orbax.checkpoint import type_handlers  # noqa: PLC0415

    job = job or Rendezvous()
    on_cpus = _are_on_cpus(arrays)
    # orbax does not write arrays without elements; reading creates them from their shapes
    raw = {name: _raw(value, on_cpus, job) for name, value in arrays.items() if value.size}
    if not raw:
        return lambda: None
    # the handler alone, since `Draft` and `Rendezvous` organize the files and processes.
    # compressed, arrays of floats are 10 % smaller, and are written and read in four times the time
    slices = type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_SLICE_BYTES)
    kinds = type_handlers.create_type_handler_registry((jax.Array, slices), (np.ndarray, type_handlers.NumpyHandler()))
    handler = orbax.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=kinds)
    arguments = orbax.args.PyTreeSave(raw, ocdbt_target_data_file_size=_FILE_BYTES)
    place = epath.Path(absolute(folder) / FOLDER)
    futures: list[Any] = []

    def begin() -> None:
        futures.extend(_run(handler.async_save(place, args=arguments)))

    def end() -> None:
        if on_cpus:
            begin()
        for future in futures:
            future.result()

    def merge() -> None:
        # the `glob` of epath, unlike pathlib's, reads "[1]" in their path as a pattern
        listed: Any = refreshed(absolute(folder) / FOLDER)
        handler.finalize(listed)
        if not (refreshed(place) / _MERGED).exists():
            given = "arrays of single processes, which orbax has not found"
            fix = "write to a folder without any of *?[] in its path"
            raise CheckpointError(f"{str(folder)!r} was not written", given=given, fix=fix)

    def wait() -> None:
        with contextlib.closing(handler):
            if on_cpus:
                job.first(lambda: _make_folders(place))
            job.each(end)
            job.first(merge)
        raw.clear()

    if not on_cpus:
        try:
            job.first(lambda: _make_folders(place))
            job.each(begin)
        except BaseException:
            with contextlib.closing(handler), contextlib.suppress(Exception):
                end()  # the folder must not be removed while it is written to
            raise
    return wait


def read_arrays(folder: pathlib.Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array | np.ndarray]:
    """Read arrays by name, as `write_arrays` has written them: with a sharding onto devices, else to the host."""
    from orbax import checkpoint as orbax  # noqa: PLC0415

    raw = {name: _raw_like(like) for name, like in wanted.items() if math.prod(like.shape)}
    how = {name: _restore_args(orbax, like) for name, like in raw.items()}
    found: dict[str, jax.Array | np.ndarray] = {}
    if raw:
        arguments = orbax.args.PyTreeRestore(item=raw, restore_args=how, partial_restore=True)
        try:
            with contextlib.closing(orbax.PyTreeCheckpointHandler()) as handler:
                found = handler.restore(epath.Path(absolute(folder) / FOLDER), args=arguments)
        except Exception as error:  # orbax and its storage raise errors of any class
            given = cause(error)
            fix = "restore another step; `keras-dist doctor` shows the damage"
            raise CheckpointError(f"the arrays in {str(folder)!r} cannot be read", given=given, fix=fix) from error
    missing = tuple(name for name in raw if not isinstance(found.get(name), jax.Array | np.ndarray))
    if missing:
        given = f"missing: {', '.join(missing)}"
        fix = "restore another step, or ask for the arrays that its record names"
        raise CheckpointError(f"the arrays in {str(folder)!r} cannot be read", given=given, fix=fix, problems=missing)
    return {name: _as_wanted(found.get(name), like) for name, like in wanted.items()}


def _make_folders(place: epath.Path) -> None:
    """Create the folders; the other processes would wait for them in orbax for minutes, if the first process fails."""
    place.mkdir()
    (place / "array_metadatas").mkdir()


def _are_on_cpus(arrays: Mapping[str, jax.Array | np.ndarray]) -> bool:
    devices = {device for value in arrays.values() if _is_on_device(value) for device in value.devices()}
    return all(device.platform == "cpu" for device in devices)


def _is_on_device(value: jax.Array | np.ndarray) -> TypeGuard[jax.Array]:
    return isinstance(value, jax.Array)


def _raw(value: jax.Array | np.ndarray, is_copied: bool, job: Rendezvous) -> jax.Array | np.ndarray:
    """Return the value to write for an array; for PRNG keys, their data."""
    if not _is_on_device(value):
        return np.array(value)
    value = jax.random.key_data(value) if is_key_dtype(value.dtype) else value
    if value.is_fully_addressable and job.processes > 1:  # on devices of this process alone
        return np.array(value)
    return place_copy(value, value.sharding) if is_copied else value


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a separate thread, since an event loop may be running in this one (in a notebook)."""

    def run() -> Any:
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            return loop.run_until_complete(coroutine)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def _raw_like(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the shape to read for an array; for PRNG keys, of their data."""
    if not is_key_dtype(like.dtype):
        return like
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=like.sharding)


def _restore_args(orbax: Any, like: jax.ShapeDtypeStruct) -> Any:
    if like.sharding is None:
        return orbax.RestoreArgs(restore_type=np.ndarray)
    return orbax.ArrayRestoreArgs(sharding=like.sharding, global_shape=like.shape, dtype=like.dtype)


def _as_wanted(raw: Any, like: jax.ShapeDtypeStruct) -> jax.Array | np.ndarray:
    if raw is None:  # without elements
        plain = _raw_like(like)
        none = np.zeros(plain.shape, plain.dtype)
        raw = none if like.sharding is None else place_copy(jnp.asarray(none), like.sharding)
    if is_key_dtype(like.dtype):
        return jax.random.wrap_key_data(raw, impl=key_impl(like.dtype))
    return raw
