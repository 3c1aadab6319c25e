"""Placement of arrays on devices, in memory that is not shared with the caller."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from keras_dist._support.arguments import argument_error
from keras_dist._support.array_operators import native
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable.jax_internals import is_key_dtype, is_traced, without_mesh
from keras_dist.distribution import lint
from keras_dist.distribution.layout import TensorLayout, from_keras
from keras_dist.errors import ClusterError, LayoutError, shorten
from keras_dist.jobs import heartbeat, job
from keras_dist.jobs.job import connect
from keras_dist.jobs.rendezvous import Rendezvous

_SHARED_ALIGNMENT = 64  # [bytes]


def distribute_tensor(tensor: PyTree, layout: Any) -> Any:
    """Shard or replicate `tensor` by a layout.

    Args:
        tensor: an array, or a traced value inside `jax.jit`.
        layout: a `TensorLayout` with a mesh, or a layout of JAX (a `jax.sharding.Sharding`, a
            `jax.experimental.layout.Format`).

    Returns:
        Outside jit, an array with this layout (`tensor` itself if it has it); inside jit, the constrained value.

    Raises:
        LayoutError: the layout has no mesh, another rank than the tensor, or does not divide it.
    """
    layout = from_keras(layout)
    if isinstance(layout, TensorLayout):
        sharding, mesh = layout.backend_layout, layout.device_mesh
        if mesh is not None:
            lint.report(lint.check_layout("tensor", np.shape(tensor), layout, mesh, None), [], mesh, strict=False)
        layout = sharding
    elif layout is None or isinstance(layout, tuple | list) or hasattr(layout, "device_mesh"):
        expected = "a TensorLayout with a mesh, or a jax.sharding.Sharding"
        raise argument_error("layout", layout, expected, error=LayoutError)
    if is_traced(tensor):
        return jax.lax.with_sharding_constraint(tensor, layout)
    if isinstance(tensor, jax.Array):
        if isinstance(layout, jax.sharding.Sharding):
            if tensor.sharding.is_equivalent_to(layout, ndim=tensor.ndim):
                return tensor
        elif getattr(tensor, "format", None) == layout:
            return tensor
    return jax.device_put(native(tensor), layout)


def is_abstract(sharding: jax.sharding.Sharding) -> bool:
    """Return whether a sharding is over an abstract mesh."""
    return isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)


def put(tree: PyTree, shardings: PyTree) -> PyTree:
    """Place the arrays of a tree with these shardings, possibly without a copy; on an abstract mesh return shapes."""
    if any(map(is_abstract, jax.tree.leaves(shardings))):
        if isinstance(shardings, jax.sharding.Sharding):
            return jax.tree.map(functools.partial(place_copy, sharding=shardings), tree)
        return jax.tree.map(place_copy, tree, shardings)
    return jax.device_put(tree, shardings)


@without_mesh()
def place_copy(value: ArrayLike, sharding: jax.sharding.Sharding, name: str = "a value") -> jax.Array:
    """Return a copy of `value` with `sharding`; on an abstract mesh its shape. All processes must have one value.

    `jax.device_put` may return, or refer to, the buffer it was given (the same sharding, one device to eight, aligned
    numpy memory); a later step with donation would then delete or overwrite the caller's array.
    """
    value = native(value)
    if is_abstract(sharding):
        shape, dtype = np.shape(value), getattr(value, "dtype", type(value))
        dtype = dtype if is_key_dtype(dtype) else jax.dtypes.canonicalize_dtype(dtype)
        return cast("jax.Array", jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))
    if not getattr(value, "committed", False) and job.are_shared(sharding.device_set):  # JAX compares values
        heartbeat.current().note_act(f"setting {name}")
        connect(sharding.device_set)
    try:
        with heartbeat.current().waiting():
            placed = jax.device_put(value, sharding)
    except AssertionError as error:  # in all of them
        values = Rendezvous(f"setting {name}").each(lambda: shorten(value), str)
        given = ", ".join(f"{value} in process {process}" for process, value in enumerate(values))
        fix = "compute it in the same way in all processes, and draw random numbers from the same seed"
        raise ClusterError(f"{name} must be the same in all processes of the job", given=given, fix=fix) from error
    copied = _copier(sharding)(placed)
    return jax.block_until_ready(copied) if isinstance(value, np.ndarray) else copied  # which reads the caller's memory


def place_constant(value: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Return a value that every process has anyhow, with `sharding`; a process does not wait for the others."""
    if is_abstract(sharding):
        return place_copy(value, sharding)
    with without_mesh():  # also of a caller whose mesh has other devices
        array = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index], dtype=value.dtype)
        return _copier(sharding)(array)


def copied_by_jax(array: np.ndarray) -> np.ndarray:
    """Return an array of the host, the argument itself if possible, that JAX copies to a device.

    On CPUs it would share memory that is aligned to 64 bytes, and then not donate it: a step would need more memory.
    """
    if array.ctypes.data % _SHARED_ALIGNMENT or not array.flags.c_contiguous:
        return array
    memory = np.empty(array.nbytes + _SHARED_ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _SHARED_ALIGNMENT + array.dtype.itemsize
    found = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


@functools.lru_cache(maxsize=512)
def _copier(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    def copy(array: jax.Array) -> jax.Array:
        return jax.numpy.copy(jax.device_put(array, jax.memory.Space.Device))

    return jax.jit(jax.numpy.copy if sharding.memory_kind in (None, "device") else copy, out_shardings=sharding)


def host_copy(array: jax.Array, region: Sequence[slice] | None = None) -> np.ndarray:
    """Return a copy of a region of `array`, or of the data of PRNG keys, on the host; by default of all of it.

    All processes that hold parts must call. JAX would keep the host's copy of a sharded array as long as the array.
    """
    data = jax.random.key_data(array) if is_key_dtype(array.dtype) else array
    wanted = [slice(0, size) for size in data.shape] if region is None else list(region)
    if data.is_fully_addressable or data.is_fully_replicated:
        return _assembled(data, wanted)
    heartbeat.current().note_act("reading a value of which each process has a part")
    with heartbeat.current().waiting():
        return np.array(multihost_utils.process_allgather(_sliced(data, wanted), tiled=True))


def _assembled(data: jax.Array, region: Sequence[slice]) -> np.ndarray:
    """Return a region of an array from the shards of this process."""
    found = np.empty([part.stop - part.start for part in region], data.dtype)
    for shard in {str(shard.index): shard for shard in data.addressable_shards}.values():
        held = [part.indices(size)[:2] for part, size in zip(shard.index, data.shape, strict=True)]
        both = [
            (max(part.start, start), min(part.stop, stop)) for part, (start, stop) in zip(region, held, strict=True)
        ]
        if all(start < stop for start, stop in both):
            there = tuple(slice(a - part.start, b - part.start) for (a, b), part in zip(both, region, strict=True))
            here = [slice(a - start, b - start) for (a, b), (start, _) in zip(both, held, strict=True)]
            found[there] = np.asarray(_sliced(shard.data, here))
    return found


def _sliced(data: jax.Array, region: Sequence[slice]) -> jax.Array:
    """Return a region of an array, as another array."""
    sizes = tuple(part.stop - part.start for part in region)
    if sizes != data.shape:
        if jax.typeof(data).memory_space == jax.memory.Space.Host:
            data = jax.device_put(data, jax.memory.Space.Device)
        return _slicer(sizes)(data, [part.start for part in region])
    shards = [shard.data for shard in data.addressable_shards]
    return jax.make_array_from_single_device_arrays(data.shape, data.sharding, shards)


@functools.lru_cache(maxsize=512)
def _slicer(sizes: tuple[int, ...]) -> Callable[..., jax.Array]:
    def sliced(data: jax.Array, starts: list[int]) -> jax.Array:
        return jax.lax.dynamic_slice(data, starts, sizes)

    return jax.jit(sliced)
