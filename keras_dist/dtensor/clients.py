"""Processes of a job, which DTensor calls clients, and their devices under DTensor's names."""

from __future__ import annotations

import os
import re
from typing import Any

import jax

from keras_dist._support.arguments import argument_error, is_int, is_number
from keras_dist._support.types import Device
from keras_dist.distribution import DeviceMesh, initialize, list_devices, process_count, process_index
from keras_dist.distribution.devices import device_name, find_device
from keras_dist.distribution.mesh import check_mesh
from keras_dist.errors import ClusterError, DeviceError, MeshError
from keras_dist.jobs.job_arguments import integer_variable
from keras_dist.jobs.rendezvous import Rendezvous


def initialize_accelerator_system(
    device_type: str | None = None, enable_coordination_service: bool | None = True, **options: Any
) -> str:
    """Join the job of this process, if it belongs to one. Call it before any computation.

    DTensor's variables describe the job: `DTENSOR_JOBS` has the addresses of its processes as
    `"host1:1234,host2:2345"`, and `DTENSOR_CLIENT_ID` the index of this process. Without them the job is found as by
    `keras_dist.initialize`. Without any description this is the only process.

    Args:
        device_type: `"CPU"`, `"GPU"` or `"TPU"`, which must exist. By default the backend that JAX prefers.
        enable_coordination_service: ignored; JAX always has one.
        options: keyword arguments for `keras_dist.initialize`.

    Returns:
        The type of the devices, as `"CPU"`.

    Raises:
        ClusterError: not all processes joined, or it is too late to join; see `keras_dist.initialize`.
        DeviceError: no such devices exist.
    """
    initialize(**{"required": False, **_arguments_in_environment(), **options})
    return _type_of(list_devices(device_type)[0])


def shutdown_accelerator_system() -> None:
    """Do nothing: a process keeps its devices, and leaves its job when it exits."""


def barrier(mesh: DeviceMesh, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Wait until all dispatched computations are done and all processes have reached the barrier.

    Args:
        mesh: a mesh. All processes of the job wait, also those without devices in it.
        barrier_name: name in errors; the same in all processes.
        timeout_in_ms: longest wait for the other processes [ms]. By default an hour.

    Raises:
        ProcessAbsentError: a process did not reach the barrier in time, or has exited.
        ClusterError: another process is at another point of the program.

    Example:
        >>> from keras_dist import dtensor
        >>> dtensor.barrier(dtensor.create_mesh([("batch", 8)]), "before the end")
    """
    check_mesh(mesh, MeshError)
    if timeout_in_ms is not None and not (is_number(timeout_in_ms) and timeout_in_ms > 0):
        raise argument_error("timeout_in_ms", timeout_in_ms, "a positive number", example=60_000, error=ClusterError)
    jax.effects_barrier()
    jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])
    timeout_s = None if timeout_in_ms is None else timeout_in_ms / 1000
    Rendezvous(f"dtensor.barrier {barrier_name or ''}".rstrip(), timeout_s=timeout_s).each(lambda: None)


def client_id() -> int:
    """Return the index of this process in its job, from 0."""
    return process_index()


def num_clients() -> int:
    """Return the number of processes of the job."""
    return process_count()


def job_name() -> str:
    """Return DTensor's name of the job: `"localhost"` for one process, else `"worker"`."""
    return "localhost" if num_clients() == 1 else "worker"


def full_job_name(task_id: int | None = None) -> str:
    """Return the name of a process, which is the prefix of its device names.

    Args:
        task_id: index of the process. By default this process.

    Raises:
        ClusterError: the job has no such process.
    """
    if task_id is not None and not is_int(task_id, 0, num_clients() - 1):
        raise argument_error("task_id", task_id, f"an index below {num_clients()}, from 0", error=ClusterError)
    return f"{job_name()}/replica:0/task:{client_id() if task_id is None else task_id}"


def jobs() -> list[str]:
    """Return the name of each process; an empty list for a single process.

    Differs from DTensor: returns names, not addresses. `keras_dist.distribution.cluster()` has the coordinator's.
    """
    return [full_job_name(index) for index in range(num_clients())] if num_clients() > 1 else []


def local_devices(device_type: str | None = None) -> list[str]:
    """Return the full names of this process's devices of a type, by default of JAX's preferred backend.

    Raises:
        DeviceError: no such devices exist.
    """
    devices = map(find_device, list_devices(device_type))
    return [full_device_name(device) for device in devices if device.process_index == process_index()]


def num_local_devices(device_type: str | None = None) -> int:
    """Return the number of this process's devices of a type."""
    return len(local_devices(device_type))


def num_global_devices(device_type: str | None = None) -> int:
    """Return the number of devices of a type over all processes."""
    return len(list_devices(device_type))


def preferred_device_type() -> str:
    """Return the device type of JAX's preferred backend, such as `"CPU"`."""
    return _type_of(list_devices()[0])


def full_device_name(device: Device) -> str:
    """Return for example `/job:localhost/replica:0/task:0/device:CPU:0`, with JAX's number of the device."""
    kind, _, number = device_name(device).partition(":")
    return f"/job:{full_job_name(device.process_index)}/device:{kind.upper()}:{number}"


def short_device_name(device: str | Device) -> str:
    """Return `"cpu:0"` for any of DTensor's names of a device, or for a `jax.Device`."""
    name = device_name(device)
    short = ":".join(name.rsplit(":", 2)[-2:])
    task = re.search(r"/task:(\d+)/", name)
    if task is not None and find_device(short).process_index != int(task[1]):
        expected = f"{full_device_name(find_device(short))!r}, or {short!r}"
        raise argument_error("device", device, expected, error=DeviceError)
    return short


def _arguments_in_environment() -> dict[str, Any]:
    """Return arguments of `keras_dist.initialize` from DTensor's variables of the environment."""
    addresses = os.environ.get("DTENSOR_JOBS")
    if not addresses:
        return {}
    process = integer_variable("DTENSOR_CLIENT_ID") or 0
    return {"job_addresses": addresses, "num_processes": addresses.count(",") + 1, "process_id": process}


def _type_of(name: str) -> str:
    return name.partition(":")[0].upper()
