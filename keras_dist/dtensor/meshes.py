"""`create_mesh` for devices of this process, and `create_distributed_mesh` for devices of all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import Device
from keras_dist.distribution import DeviceMesh, list_devices, process_count, process_index
from keras_dist.distribution.devices import device_name, find_device
from keras_dist.dtensor import clients
from keras_dist.dtensor.layout import Mesh
from keras_dist.errors import MeshError, shorten

MeshDims = Sequence[tuple[str, int]] | Mapping[str, int]  # the name and the size of each dim of a mesh, in order


def create_mesh(
    mesh_dims: MeshDims | None = None,
    devices: Sequence[str | Device] | None = None,
    mesh_name: str = "",
    device_type: str | None = None,
) -> Mesh:
    """Create a mesh of devices of this process, or of the given devices.

    Args:
        mesh_dims: names and sizes of the dims, as `[("batch", 2), ("model", 4)]` or a dict. One size may be -1: it is
            inferred from the number of devices. By default one dim, `"x"`, over all devices.
        devices: names such as `"CPU:0"`, also in their full form, or `jax.Device`s, in row-major order of the mesh. By
            default all devices of this process.
        mesh_name: name of the mesh in text.
        device_type: `"CPU"`, `"GPU"` or `"TPU"`, if `devices` is None. By default the backend that JAX prefers.

    Raises:
        MeshError: dims and devices do not fit together, or a name or a device appears twice.
        DeviceError: a device does not exist.

    Example:
        >>> from keras_dist import dtensor
        >>> dtensor.create_mesh([("batch", 8)], devices=[f"CPU:{i}" for i in range(8)]).shape()
        [8]
        >>> dtensor.create_mesh({"batch": -1, "model": 4}, mesh_name="train").to_string()[:22]
        'train|batch=2,model=4|'

    Differs from DTensor: `devices` is the second argument. -1 may stand beside other dims. Devices of other processes
    may be given. By default the backend is the one that JAX prefers, not always CPUs.
    """
    if isinstance(devices, str):
        raise argument_error("devices", devices, "a sequence of devices", example=["CPU:0", "CPU:1"], error=MeshError)
    if devices is None and (device_type is not None or process_count() > 1):
        devices = _devices_of(process_index(), device_type)
    elif devices is not None:
        devices = [clients.short_device_name(device) for device in devices]
        other = [name for name in devices if device_type is not None and not name.startswith(f"{device_type.lower()}:")]
        if other:
            expected = f"the type of the devices, of which one is {other[0]!r}"
            raise argument_error("device_type", device_type, expected, error=MeshError)
    return _mesh(mesh_dims, devices, mesh_name)


def create_distributed_mesh(
    mesh_dims: MeshDims,
    mesh_name: str = "",
    num_global_devices: int | None = None,
    num_clients: int | None = None,
    client_id: int | None = None,
    device_type: str | None = None,
) -> Mesh:
    """Create a mesh of devices of all processes of the job. All processes call it with the same dims.

    Args:
        mesh_dims: names and sizes of the dims; see `create_mesh`.
        mesh_name: name of the mesh in text.
        num_global_devices: number of devices, the same number from each process. By default all devices.
        num_clients: number of processes; only checked against the job.
        client_id: index of this process; only checked against the job.
        device_type: `"CPU"`, `"GPU"` or `"TPU"`. By default the backend that JAX prefers.

    Raises:
        MeshError: the dims do not fit the devices, or a number differs from the job's.
        DeviceError: no such devices exist.

    Example:
        >>> from keras_dist import dtensor
        >>> dtensor.create_distributed_mesh([("batch", 4)], num_global_devices=4).num_local_devices()
        4

    Differs from DTensor: `local_devices` is not available; pass the devices of all processes to `create_mesh` instead.
    """
    processes = process_count()
    for argument, value, own in (("num_clients", num_clients, processes), ("client_id", client_id, process_index())):
        if value not in (None, own):
            raise argument_error(argument, value, f"{own}, as keras_dist.initialize has found", error=MeshError)
    devices = list_devices(device_type)
    if num_global_devices is not None:
        if not is_int(num_global_devices, 1, len(devices)) or num_global_devices % processes:
            expected = f"at most {len(devices)} devices, the same number from each of the {processes} processes"
            raise argument_error("num_global_devices", num_global_devices, expected, error=MeshError)
        each = num_global_devices // processes
        devices = [name for process in range(processes) for name in _devices_of(process, device_type)[:each]]
    return _mesh(mesh_dims, devices if device_type or num_global_devices else None, mesh_name)


def _mesh(mesh_dims: Any, devices: Sequence[str] | None, mesh_name: str) -> Mesh:
    dims = [("x", -1)] if mesh_dims is None else mesh_dims
    pairs = list(dims.items()) if isinstance(dims, Mapping) else dims
    if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not all(_is_pair(pair) for pair in pairs):
        expected = "a name and a size for each dim"
        raise argument_error("mesh_dims", mesh_dims, expected, example=[("batch", 2), ("model", 4)], error=MeshError)
    if not isinstance(mesh_name, str):
        raise argument_error("mesh_name", shorten(mesh_name), "a string", example="train", error=MeshError)
    sizes, names = [size for _, size in pairs], [name for name, _ in pairs]
    mesh = Mesh.from_device_mesh(DeviceMesh(sizes, names, devices), mesh_name)
    _ = mesh.backend_mesh  # raises where a device does not exist
    return mesh


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def _devices_of(process: int, device_type: str | None) -> list[str]:
    devices = map(find_device, list_devices(device_type))
    return [device_name(device) for device in devices if device.process_index == process]
