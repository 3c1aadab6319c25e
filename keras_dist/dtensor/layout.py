"""`Mesh` and `Layout`: `DeviceMesh` and `TensorLayout` with the names and the text form of DTensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import jax
import numpy as np
from flax import nnx

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.array_operators import Operators
from keras_dist._support.types import Device
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.distribution import DeviceMesh, TensorLayout, list_devices, process_index
from keras_dist.distribution.devices import device_name
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.dtensor import clients
from keras_dist.errors import LayoutError, MeshError, shorten

UNSHARDED = "unsharded"
"""The entry of a layout for a dim that is not sharded."""

_LONGEST_TEXT = 2**20  # largest number of characters of a layout or mesh in text


class MeshDimension(NamedTuple):
    """Name and size of a dim of a mesh."""

    name: str
    size: int


class _Sizes(tuple[int, ...]):
    """`DeviceMesh.shape`, which can also be called, as `Mesh.shape()` in DTensor."""

    __slots__ = ()

    def __call__(self) -> list[int]:
        return list(self)


class Mesh(DeviceMesh):
    """Devices arranged on named dims: a `DeviceMesh` with DTensor's names. Usually made by `create_mesh`.

    Args:
        dim_names: a name for each dim.
        global_device_ids: array of the mesh's shape; for each position the index of the device in `global_devices`.
        local_device_ids: positions of this process's devices; only checked.
        local_devices: devices of this process; in a job of one process all devices.
        mesh_name: name of the mesh in text.
        global_devices: names such as `"cpu:0"`, or `jax.Device`s. By default `local_devices`, or all of the job.

    Raises:
        MeshError: the arguments do not fit together.

    Example:
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
        >>> mesh.shape(), mesh.dim_names, mesh.dim_size("model")
        ([2, 4], ['batch', 'model'], 4)
        >>> mesh.local_device_locations()[5]
        {'batch': 1, 'model': 1}

    Differs from DTensor: `shape` is a tuple, as in `DeviceMesh`, which can also be called.
    """

    def __init__(
        self,
        dim_names: Sequence[str],
        global_device_ids: Any,
        local_device_ids: Sequence[int] | None = None,
        local_devices: Sequence[str | Device] | None = None,
        mesh_name: str = "",
        global_devices: Sequence[str | Device] | None = None,
    ) -> None:
        devices = list(global_devices or local_devices or list_devices())
        ids = np.asarray(global_device_ids)
        flat = ids.flatten().tolist()
        first = min(flat, default=0)
        if sorted(flat) != list(range(first, first + len(flat))) or max(flat) >= len(devices):
            expected = f"an array of consecutive indices of the {len(devices)} devices"
            raise argument_error("global_device_ids", global_device_ids, expected, error=MeshError)
        super().__init__(ids.shape, list(dim_names), [clients.short_device_name(devices[index]) for index in flat])
        self._name = mesh_name
        if local_device_ids is not None and list(local_device_ids) != self.local_device_ids():
            expected = f"{self.local_device_ids()}, the positions of this process's devices in the mesh"
            raise argument_error("local_device_ids", local_device_ids, expected, error=MeshError)

    @classmethod
    def from_device_mesh(cls, device_mesh: DeviceMesh, mesh_name: str = "") -> Self:
        """Return a `DeviceMesh` as a `Mesh`."""
        mesh = cls.__new__(cls)
        mesh.__setstate__((list(device_mesh.axis_names), device_mesh.devices, device_mesh.dcn_shape, mesh_name))
        return mesh

    @classmethod
    def from_device(cls, device: str | Device) -> Self:
        """Return the mesh of one device, with one dim, `"x"`."""
        return cls.from_device_mesh(DeviceMesh((1,), ["x"], [device]))

    @classmethod
    def from_string(cls, mesh_str: str) -> Self:
        """Return the mesh that `to_string` wrote, on the devices of this job.

        Raises:
            MeshError: the text does not describe a mesh.
            DeviceError: a device does not exist.
        """
        try:
            name, dims, _, _, *devices = _text(mesh_str).split("|")
            pairs = [dim.rsplit("=", 1) for dim in dims.split(",")]
            sizes = {name: int(size) for name, size in pairs}
            names = [clients.short_device_name(device) for device in devices[-1].split(",")]
            if len(sizes) != len(pairs):
                raise ValueError
        except (ValueError, IndexError):
            example = "|batch=2|0,1|0,1|/job:localhost/replica:0/task:0/device:CPU:0,/job:localhost/.../device:CPU:1"
            expected = "text as `Mesh.to_string` returns it"
            raise argument_error("mesh_str", mesh_str, expected, example=example, error=MeshError) from None
        return cls.from_device_mesh(DeviceMesh(sizes, devices=names), name)

    def to_string(self) -> str:
        """Return the mesh as text: `name|dims|device ids|local ids|local devices`, in a job also all devices."""
        dims = ",".join(f"{name}={size}" for name, size in self.axis_sizes.items())
        local, devices = self.local_device_ids(), self.global_devices()
        fields = [self.name, dims, _listed(range(self.size)), _listed(local), _listed(devices[i] for i in local)]
        return "|".join(fields if len(local) == self.size else [*fields, _listed(devices)])

    @property
    def name(self) -> str:
        """Name of the mesh in text."""
        return self._name

    @property
    def shape(self) -> _Sizes:
        """Sizes of the dims, as a tuple; when called, as a list."""
        return _Sizes(self._shape)

    @property
    def dim_names(self) -> list[str]:
        """Names of the dims."""
        return list(self.axis_names)

    def dim_size(self, dim_name: str) -> int:
        """Return the number of devices along a dim.

        Raises:
            MeshError: the mesh has no such dim.
        """
        return self.axis_size(dim_name)

    def contains_dim(self, dim_name: str) -> bool:
        """Return whether the mesh has a dim of this name."""
        return dim_name in self.axis_names

    __contains__ = contains_dim

    def __getitem__(self, dim_name: str) -> MeshDimension:
        return MeshDimension(dim_name, self.dim_size(dim_name))

    def device_type(self) -> str:
        """Return the type of the devices, as `"CPU"`."""
        return device_name(self._devices.flat[0]).partition(":")[0].upper()

    def global_device_ids(self) -> np.ndarray:
        """Return the indices of the devices in the mesh, as an array of its shape."""
        return np.arange(self.size).reshape(self._shape)

    def global_devices(self) -> list[str]:
        """Return the full names of all devices, in the order of the mesh."""
        return [clients.full_device_name(device) for device in self._flat()]

    def local_device_ids(self) -> list[int]:
        """Return the indices in the mesh of the devices of this process."""
        return [index for index, device in enumerate(self._flat()) if device.process_index == process_index()]

    def local_devices(self) -> list[str]:
        """Return the full names of the devices of this process."""
        devices = self.global_devices()
        return [devices[index] for index in self.local_device_ids()]

    def num_local_devices(self) -> int:
        """Return the number of devices of this process in the mesh."""
        return len(self.local_device_ids())

    def local_device_locations(self) -> list[dict[str, int]]:
        """Return the index along each dim, for each device of this process."""
        places = self.unravel_index()
        return [places[index] for index in self.local_device_ids()]

    def unravel_index(self) -> dict[int, dict[str, int]]:
        """Return the index along each dim, for each device of the mesh."""
        places = np.ndindex(*self._shape)
        return {index: dict(zip(self.dim_names, place, strict=True)) for index, place in enumerate(places)}

    def coords(self, device_idx: int) -> np.ndarray:
        """Return the index of a device along each dim, as an array."""
        return np.array(np.unravel_index(device_idx, self._shape))

    @property
    def strides(self) -> list[int]:
        """Distance of neighbours along each dim in the list of devices."""
        return [math.prod(self._shape[dim + 1 :]) for dim in range(len(self._shape))]

    def min_global_device_id(self) -> int:
        """Return the smallest index of a device: 0."""
        return 0

    def is_single_device(self) -> bool:
        """Return whether the mesh has one device."""
        return self.size == 1

    def is_remote(self) -> bool:
        """Return whether no device of the mesh belongs to this process."""
        return not self.local_device_ids()

    def _flat(self) -> list[Device]:
        return list(self.backend_mesh.devices.flat)

    def __getstate__(self) -> tuple[Any, ...]:
        return (*super().__getstate__(), self._name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        super().__setstate__(state[:3])
        self._name = state[3] if len(state) > 3 else ""

    def __repr__(self) -> str:
        return f"Mesh.from_string({self.to_string()})"


class Layout(TensorLayout):
    """The dims of a mesh over which the dims of a tensor are sharded: a `TensorLayout` with DTensor's names.

    Args:
        sharding_specs: an entry for each dim of the tensor: `UNSHARDED`, the name of a dim of the mesh, or several
            names in a tuple.
        mesh: the mesh; a `DeviceMesh` is converted.

    Raises:
        LayoutError: an entry is not a dim of the mesh, or is used for two dims.

    Example:
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
        >>> layout = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
        >>> layout.shape, layout.rank, layout.delete([0]).sharding_specs
        ([2, 1], 2, ['unsharded'])
        >>> layout.offset_to_shard()[5]
        (1, 0)

    Differs from DTensor: `shape` is the number of shards of each dim of the tensor, as in its tutorials, not the shape
    of the mesh. A dim may be sharded over several dims of the mesh.
    """

    __slots__ = ()

    def __init__(self, sharding_specs: Sequence[Any], mesh: DeviceMesh) -> None:
        if not isinstance(mesh, DeviceMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise argument_error("mesh", mesh, "a Mesh, as `create_mesh` returns", error=LayoutError)
        entries: Any = sharding_specs
        if isinstance(entries, Sequence) and not isinstance(entries, str):
            entries = [None if isinstance(entry, str) and entry == UNSHARDED else entry for entry in entries]
        super().__init__(entries, mesh if isinstance(mesh, Mesh) else Mesh.from_device_mesh(mesh))

    @classmethod
    def from_tensor_layout(cls, layout: TensorLayout) -> Self:
        """Return a `TensorLayout` as a `Layout`.

        Raises:
            LayoutError: the layout has no mesh.
        """
        if layout.device_mesh is None:
            raise argument_error("layout", layout, "a layout with a mesh", error=LayoutError)
        return cls(layout.axes, layout.device_mesh)

    @classmethod
    def replicated(cls, mesh: DeviceMesh, rank: int) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the layout of a replicated tensor of `rank` dims."""
        return cls([UNSHARDED] * _rank(rank), mesh)

    @classmethod
    def batch_sharded(cls, mesh: DeviceMesh, batch_dim: str, rank: int, axis: int = 0) -> Self:
        """Return the layout of a tensor of `rank` dims whose dim `axis` is sharded over `batch_dim` of the mesh.

        Raises:
            LayoutError: the tensor has no dim `axis`, or the mesh no dim of this name.
        """
        if not is_int(axis, 0, _rank(rank) - 1):
            raise argument_error("axis", axis, f"a dim of a tensor of {rank} dims, from 0", error=LayoutError)
        return cls([batch_dim if dim == axis else UNSHARDED for dim in range(rank)], mesh)

    @classmethod
    def inner_sharded(cls, mesh: DeviceMesh, inner_dim: str, rank: int) -> Self:
        """Return the layout of a tensor of `rank` dims whose last dim is sharded over `inner_dim` of the mesh."""
        return cls.batch_sharded(mesh, inner_dim, rank, _rank(rank) - 1)

    @classmethod
    def from_device(cls, device: str | Device) -> Self:
        """Return the layout of a scalar on one device."""
        return cls([], Mesh.from_device(device))

    @classmethod
    def from_string(cls, layout_str: str) -> Self:
        """Return the layout of a text that `to_string` returned, on devices of this job.

        Raises:
            LayoutError: the text does not describe a layout.
        """
        head, found, mesh = _text(layout_str).partition(" mesh:")
        kind, _, specs = head.partition(":")
        if not found or kind != "sharding_specs":
            expected, example = (
                "text as `Layout.to_string` returns it",
                "sharding_specs:batch,unsharded, mesh:|batch=2|...",
            )
            raise argument_error("layout_str", layout_str, expected, example=example, error=LayoutError)
        entries = [entry.split("+") for entry in specs.split(",")[:-1]]
        return cls([tuple(entry) if len(entry) > 1 else entry[0] for entry in entries], Mesh.from_string(mesh))

    def to_string(self) -> str:
        """Return the layout as text. Several dims of the mesh in one entry are joined by `+`."""
        specs = "".join("+".join(axis_tuple(spec)) + "," for spec in self.sharding_specs)
        return f"sharding_specs:{specs} mesh:{self.mesh.to_string()}"

    @property
    def sharding_specs(self) -> list[Any]:
        """An entry for each dim of the tensor: `UNSHARDED`, a dim of the mesh, or several in a tuple."""
        return [UNSHARDED if axis is None else axis for axis in self.axes]

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return cast("Mesh", self.device_mesh)

    @property
    def rank(self) -> int:
        """Number of dims of the tensor."""
        return len(self.axes)

    @property
    def shape(self) -> list[int]:
        """Number of shards of each dim of the tensor."""
        return [self.num_shards(dim) for dim in range(self.rank)]

    def num_shards(self, idx: int) -> int:
        """Return the number of shards of a dim of the tensor."""
        return self.mesh.axis_size(self.axes[idx])

    def is_fully_replicated(self) -> bool:
        """Return whether no dim is sharded."""
        return not any(self.axes)

    def is_batch_parallel(self) -> bool:
        """Return whether the first dim is sharded, and no other."""
        return bool(self.axes) and self.axes[0] is not None and not any(self.axes[1:])

    def is_single_device(self) -> bool:
        """Return whether the mesh has one device."""
        return self.mesh.is_single_device()

    def delete(self, dims: Iterable[int] | int) -> Layout:
        """Return the layout without these dims of the tensor.

        Raises:
            LayoutError: the tensor has no such dim.
        """
        gone = [dims] if isinstance(dims, int) else list(dims)
        if not all(is_int(dim, 0, self.rank - 1) for dim in gone):
            raise argument_error("dims", dims, f"dims of a tensor of {self.rank} dims, from 0", error=LayoutError)
        return Layout([spec for dim, spec in enumerate(self.sharding_specs) if dim not in gone], self.mesh)

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Return the index of the shard along each dim of the tensor, for each device of the mesh, in order."""
        sizes = self.mesh.axis_sizes

        def shard(place: Mapping[str, int], axis: Any) -> int:
            index = 0
            for name in axis_tuple(axis):
                index = index * sizes[name] + place[name]
            return index

        return [tuple(shard(place, axis) for axis in self.axes) for place in self.mesh.unravel_index().values()]

    def offset_tuple_to_global_index(self, offset_tuple: Sequence[int]) -> int:
        """Return the index of a shard among all shards of the tensor."""
        return int(np.ravel_multi_index(tuple(offset_tuple), tuple(self.shape))) if self.rank else 0

    def __repr__(self) -> str:
        return f"Layout.from_string({self.to_string()})"

    __str__ = __repr__


Mesh.layout_class = Layout


def is_dtensor(tensor: Any) -> bool:
    """Return whether `tensor` is an array on a mesh, or a variable of such an array. Traced arrays have no layout."""
    array = array_of(tensor)
    is_known = isinstance(array, jax.Array) and not is_traced(array)
    return is_known and isinstance(array.sharding, jax.sharding.NamedSharding)


def array_of(tensor: Any) -> Any:
    """Return the array of a variable, without a copy; anything else as it is."""
    if isinstance(tensor, Operators):
        return tensor.peek()
    return tensor.get_raw_value() if isinstance(tensor, nnx.Variable) else tensor


def layout_of(array: jax.Array) -> Layout:
    """Return the layout of an array. An array without a mesh is replicated on a mesh of its devices."""
    sharding = array.sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):
        devices = sorted(sharding.device_set, key=lambda device: device.id)
        return Layout.replicated(mesh_of(jax.sharding.Mesh(np.array(devices), ("x",))), array.ndim)
    axes = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
    return Layout(axes, mesh_of(cast("jax.sharding.Mesh", sharding.mesh)))


@functools.lru_cache(maxsize=64)
def mesh_of(mesh: jax.sharding.Mesh) -> Mesh:
    """Return a mesh of JAX as a `Mesh`."""
    return Mesh.from_device_mesh(DeviceMesh(mesh.axis_sizes, mesh.axis_names, mesh.devices))


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        expected = f"a string of at most {_LONGEST_TEXT} characters"
        raise argument_error("layout_str", shorten(value), expected, error=LayoutError)
    return value


def _rank(rank: Any) -> int:
    if not is_int(rank, 0):
        raise argument_error("rank", rank, "a number of dims", error=LayoutError)
    return rank


def _listed(items: Iterable[Any]) -> str:
    return ",".join(map(str, items))
