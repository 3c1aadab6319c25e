"""`pack` and `unpack`: between an array with a layout and the components that devices hold."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.array_operators import value_of
from keras_dist._unstable.jax_internals import is_tracing
from keras_dist.distribution import TensorLayout, distribute_tensor
from keras_dist.dtensor.layout import Layout, is_dtensor
from keras_dist.dtensor.tensors import as_array, checked_layout, fetch_layout, shown
from keras_dist.errors import LayoutError, shorten

Offset = tuple[int, ...]
"""Index of a shard along each dim of the array."""


def pack(tensors: Sequence[Any], layout: TensorLayout) -> jax.Array:
    """Make one array of the components on the devices of this process. `unpack` is the inverse.

    Args:
        tensors: one component for each device of this process, in the order of `layout.mesh.local_device_locations()`,
            all of one shape and dtype. Devices with the same shard take the same component.
        layout: layout of the array. A dim over `n` shards is `n` times as large as the components' dim.

    Returns:
        The array. Inside `jax.jit`, the joined components, with this layout.

    Raises:
        LayoutError: the number of components is wrong; a component has another shape, dtype or rank than the others or
            the layout; or components on the host for one shard differ.
        DataError: an integer does not fit into JAX's integers.

    Example:
        >>> import numpy as np
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> x = np.arange(16)
        >>> packed = dtensor.pack(np.split(x, 8), dtensor.Layout(["batch"], mesh))
        >>> packed.shape, dtensor.unpack(packed)[3].tolist()
        ((16,), [6, 7])

    Differs from DTensor: works inside a compiled function, and compares the components of one shard.
    """
    layout = checked_layout(layout)
    components = _components(tensors, layout)
    places, offsets = _places(layout)
    shards: dict[Offset, int] = {}
    for number, offset in enumerate(offsets):
        earlier = shards.setdefault(offset, number)
        if not _is_same(components[earlier], components[number]):
            raise LayoutError(
                f"components {earlier} and {number} of pack are one shard, but differ",
                given=f"{shorten(components[earlier])} and {shorten(components[number])} for shard {offset}",
                fix="give both devices the same component, or shard a dim over the axis along which they differ",
            )
    if is_tracing():
        return distribute_tensor(_joined({offset: components[number] for offset, number in shards.items()}), layout)
    sizes = components[0].shape
    shape = tuple(size * count for size, count in zip(sizes, layout.shape, strict=True))
    if any(isinstance(component, jax.Array) for component in components):
        devices = layout.mesh.backend_mesh.devices.flat
        parts = jax.device_put(components, [devices[place] for place in places])
        return jax.make_array_from_single_device_arrays(shape, layout.backend_layout, parts)

    def component_at(index: Any) -> np.ndarray:
        starts = [dim.start or 0 for dim in index]
        return components[shards[tuple(start // max(size, 1) for start, size in zip(starts, sizes, strict=True))]]

    return jax.make_array_from_callback(shape, layout.backend_layout, component_at)  # faster than to each device


def unpack(tensor: Any) -> list[jax.Array]:
    """Return the components of an array on the devices of this process, in the order of the mesh.

    Args:
        tensor: an array with a layout, or a variable.

    Raises:
        LayoutError: the array has no layout, or is traced.
    """
    array = value_of(tensor)
    layout, array = fetch_layout(array), value_of(array)  # a copy, which no later step consumes
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    return [parts[device] for device in layout.mesh.backend_mesh.devices.flat if device in parts]


@functools.lru_cache(maxsize=64)
def _places(layout: Layout) -> tuple[list[int], list[Offset]]:
    """Return the positions of this process's devices in the mesh, and the shard of each."""
    places, offsets = layout.mesh.local_device_ids(), layout.offset_to_shard()
    return places, [offsets[place] for place in places]


def _components(tensors: Sequence[Any], layout: Layout) -> list[Any]:
    """Return the components as arrays, checked against each other and the layout."""
    count = layout.mesh.num_local_devices()
    if isinstance(tensors, str | dict) or not hasattr(tensors, "__len__") or not 0 < len(tensors) == count:
        given = f"{len(tensors)} components" if hasattr(tensors, "__len__") else shorten(tensors)
        given = f"{given} for the {count} local devices of mesh {layout.mesh.describe()}"
        fix = f"split the array in {layout.shape} along its dims, or copy_to_mesh(array, layout)"
        raise LayoutError("pack needs a component for each device of this process", given=given, fix=fix)
    if is_tracing() and count < layout.mesh.size:
        summary = "pack cannot join the components of several processes inside a compiled function"
        fix = "pack before the call, and pass the array to the function"
        raise LayoutError(summary, given=f"{count} of {layout.mesh.size} components", fix=fix)
    tensors = list(tensors)
    unique = {id(tensor): as_array(tensor, f"component {number} of pack") for number, tensor in enumerate(tensors)}
    components = [unique[id(tensor)] for tensor in tensors]
    first = components[0]
    for number, component in enumerate(components):
        name = f"component {number} of pack"
        if component.ndim != layout.rank:
            fix = f"a layout with {component.ndim} entries, or components with {layout.rank} dims"
            given = f"shape {component.shape} for layout {layout.sharding_specs}"
            raise LayoutError(f"{name} must have {layout.rank} dims", given=given, fix=fix)
        if isinstance(component, jax.Array) and is_dtensor(component) and len(component.sharding.device_set) > 1:
            given = f"an array on {shown(fetch_layout(component).mesh)}"
            fix = "relayout(array, layout) on the same mesh, copy_to_mesh(array, layout) from another one"
            raise LayoutError(f"{name} must be a NumPy array, or an array of one device", given=given, fix=fix)
        if (component.shape, component.dtype) != (first.shape, first.dtype):
            given = f"shape {component.shape}, dtype {component.dtype}"
            fix = f"split dims into parts of one size: they are cut in {layout.shape}"
            raise LayoutError(f"{name} must have shape {first.shape} and dtype {first.dtype}", given=given, fix=fix)
    return components


def _is_same(one: Any, other: Any) -> bool:
    """Whether two components are equal; arrays on devices are not compared."""
    if one is other or not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return True
    return np.array_equal(one, other, equal_nan=jnp.issubdtype(one.dtype, jnp.inexact))


def _joined(shards: dict[Offset, Any]) -> jax.Array:
    counts = [last + 1 for last in max(shards)]

    def nested(offset: Offset) -> Any:
        dim = len(offset)
        return shards[offset] if dim == len(counts) else [nested((*offset, index)) for index in range(counts[dim])]

    return jnp.block(nested(()))
